"""A model as a file of ONNX, and the packages that this needs."""

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cflower.errors import ExportError
from cflower.settings import check_choice

FORMATS = {"safetensors": ".safetensors", "onnx": ".onnx"}
"""Ending of the file in each format."""
TOLERANCE = 1e-5
"""Largest difference of a logit, relative to the largest logit where that is above 1."""
PACKAGES_FOR = {"onnx": ("onnx", "onnxruntime", "onnxscript")}


def check_file_format(name: str) -> None:
    """Refuse a format that is unknown or needs packages that are not installed."""
    check_choice("format", name, FORMATS)
    missing = [package for package in PACKAGES_FOR.get(name, ()) if find_spec(package) is None]
    if missing:
        raise ExportError(
            f"The format {name} needs packages that are not installed here: pip install "
            f"{' '.join(missing)}, or choose safetensors."
        )


def write_onnx(model: nn.Module, path: Path, input_shape: tuple[int, ...]) -> None:
    """Write a model as ONNX, read the file back and compare their logits.

    The model is on the CPU, in evaluation mode, and takes float32 of shape (batch, *input_shape),
    any batch.
    """
    # Two examples: a batch of one would be exported as a constant.
    example = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
    try:
        torch.onnx.export(
            with_plain_pooling(model),
            (example,),
            path,
            input_names=["input"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            external_data=False,  # one file
            dynamo=True,
            verbose=False,
        )
    except torch.onnx.OnnxExporterError as error:
        raise ExportError(
            f"PyTorch cannot write this model as onnx ({str(error).splitlines()[0]}): choose "
            "safetensors."
        ) from None
    for size in (1, 3):
        inputs = torch.rand(size, *input_shape, generator=torch.Generator().manual_seed(size))
        check_same(model, inputs, onnx_logits(path, inputs))


def onnx_logits(path: Path, inputs: Tensor) -> NDArray[Any]:
    """Logits of an ONNX file for these inputs, shape (batch, num_classes)."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"input": inputs.numpy()})[0])


def check_same(model: nn.Module, inputs: Tensor, logits: NDArray[Any]) -> None:
    """Refuse a file with logits that differ from the model's by more than `TOLERANCE`."""
    with torch.no_grad():
        expected = np.asarray(model(inputs))
    allowed = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if logits.shape != expected.shape or not np.allclose(logits, expected, rtol=0, atol=allowed):
        raise ExportError(
            f"The file was not written: read back, its logits differ by more than {allowed:.2g} "
            "from the model's; choose another format."
        )


def with_plain_pooling(model: nn.Module) -> nn.Module:
    """A copy of a model without adaptive pooling, for which ONNX has no operator."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.AdaptiveMaxPool2d):
            outputs: Any = module.output_size
            model.set_submodule(name, WindowMax(outputs))
    return model


class WindowMax(nn.Module):
    """`nn.AdaptiveMaxPool2d` with ``outputs`` by ``outputs`` windows, as plain maxima."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, images: Tensor) -> Tensor:  # shape: (batch, channels, height, width)
        n = self.outputs
        for axis in (2, 3):
            starts = [i * images.shape[axis] // n for i in range(n)]
            ends = [-(-(i + 1) * images.shape[axis] // n) for i in range(n)]
            windows = [
                images.narrow(axis, start, end - start).amax(axis, keepdim=True)
                for start, end in zip(starts, ends, strict=True)
            ]
            images = torch.cat(windows, axis)
        return images
