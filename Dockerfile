# Three images of one environment; docs/guide/containers.md has the commands that start them.
#   docker build --target superlink --tag cflower-superlink .
#   docker build --target supernode --tag cflower-supernode .
#   docker build --target cflower --tag cflower .
# For machines without a GPU, PyTorch without CUDA, which is most of the 7 GB:
#   --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
FROM python:3.11-slim-bookworm AS install
ARG TORCH_INDEX=https://pypi.org/simple
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY cflower cflower
RUN python -m venv /opt/cflower \
    && /opt/cflower/bin/pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" --constraint constraints.txt .

# No key, certificate or data is in an image: /etc/cflower and /var/lib/cflower come from the machine. HOME and USER
# also hold for another user (`docker run --user`), which the image does not know.
FROM python:3.11-slim-bookworm AS environment
COPY --from=install /opt/cflower /opt/cflower
RUN useradd --uid 1000 --home-dir /var/lib/cflower cflower \
    && install --directory --owner cflower --group cflower --mode 700 /etc/cflower /var/lib/cflower
ENV PATH=/opt/cflower/bin:/usr/local/bin:/usr/bin:/bin HOME=/var/lib/cflower USER=cflower
WORKDIR /var/lib/cflower
USER 1000:1000
CMD ["--help"]

FROM environment AS superlink
ENTRYPOINT ["flower-superlink"]

FROM environment AS supernode
ENTRYPOINT ["flower-supernode"]

FROM environment AS cflower
ENTRYPOINT ["cflower"]
