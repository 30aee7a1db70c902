"""A run's model as a file with its card beside it."""

from difflib import get_close_matches
from hashlib import sha256
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory

from cflower.choices import check_choice
from cflower.errors import ConfigError, ExportError, RunFolderError
from cflower.learning.files import FORMATS, check_format, write_model
from cflower.runs.card import ModelFile, model_card
from cflower.runs.record import RunRecord
from cflower.saved_run import SavedRun


def export(
    run: Path | str,
    *,
    client: str = "",
    cluster: str = "",
    file_format: str = "",
    output: Path | str = "",
    seed_file: str = "",
) -> Path:
    """Write one model of a run as a file, with a model card beside it.

    Parameters
    ----------
    run : Path or str
        The run folder.
    client : str
        Whose model: that of the leaf the client belongs to. Either this or ``cluster``.
    cluster : str
        Which cluster's model, such as ``0.1``; ``0`` is the model for all.
    file_format : str
        "safetensors" (the arrays), "torchscript" or "onnx" (runs without cflower); the latter two
        are read back and must answer as the model does. By the ending of ``output`` if not given.
    output : Path or str
        The file; ``<run-id>-<cluster>`` in the working folder if not given. The card's name is
        the file's with ``.md`` added.
    seed_file : str
        The clients' secret, if the run's weights were permuted: the file holds the true model.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ConfigError
        If there is no such client, cluster or format.
    RunFolderError
        If the run folder is damaged or not whole.
    ExportError
        If there is such a file already, or it cannot be written; then nothing is left behind.
    """
    file_format = format_of(file_format, str(output))
    folder = Path(run).expanduser()
    saved, record = SavedRun.read(folder, seed_file), RunRecord.read(folder)
    if not record.clusters:
        raise RunFolderError(
            f"The run {folder.name} has no models yet: its first round is not over."
        )
    name = cluster_of(record, client, cluster)
    path = Path(output or f"{folder.name}-{name}{FORMATS[file_format]}").expanduser()
    card = path.with_name(f"{path.name}.md")
    check_free(path)
    check_free(card)
    weights = saved.weights(name)
    try:
        with TemporaryDirectory(dir=path.parent, prefix=".cflower-export-") as place:
            file, text = Path(place) / "model", Path(place) / "card"
            model, metadata = saved.module(weights), metadata_of(saved, name)
            write_model(model, file, file_format, saved.kind.input_shape, metadata)
            told = ModelFile(path.name, file_format, sha256(file.read_bytes()).hexdigest())
            text.write_text(model_card(record, name, saved.kind, told))
            text.replace(card)
            file.replace(path)
    except OSError as error:
        raise ExportError(
            f"Cannot write {path}: {error.strerror}. Give another --output."
        ) from None
    return path


def format_of(file_format: str, output: str) -> str:
    """The format that is asked for by its name or by the ending of the file.

    Raises
    ------
    ConfigError, ExportError
        If the two contradict each other, or there is no such format.

    Examples
    --------
    >>> format_of("", "model.pt"), format_of("", ""), format_of("safetensors", "model.bin")
    ('torchscript', 'safetensors', 'safetensors')
    """
    ending = Path(output).suffix.lower()
    by_ending = {usual: name for name, usual in FORMATS.items()}.get(ending)
    if file_format and by_ending and by_ending != file_format:
        raise ConfigError(
            f"Got --format {file_format} with --output {output}, but files that end in {ending} "
            f"are {by_ending}: leave one of them out, or end the file in {FORMATS[file_format]}."
        )
    chosen = file_format or by_ending or "safetensors"
    check_format(chosen)
    return chosen


def cluster_of(record: RunRecord, client: str, cluster: str) -> str:
    """The cluster that is asked for by its own name or by one of its clients.

    Raises
    ------
    ConfigError
        If there is none, or it is asked for by both or neither.
    """
    if bool(client) == bool(cluster):
        got = f"client {client!r} and cluster {cluster!r}" if client else "no client, no cluster"
        raise ConfigError(f"Got {got}, but expected exactly one of them.")
    if cluster:
        return check_choice("cluster", cluster, record.clusters)
    clients = {name: leaf for leaf in record.leaves for name in record.clusters[leaf]["members"]}
    if client not in clients:
        near = get_close_matches(client, clients, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`cflower show` lists them."
        raise ConfigError(f"The run {record.name} has no client {client!r}: {hint}")
    return clients[client]


def check_free(path: Path) -> None:
    """Refuse a path at which something is, or at which nothing can be.

    Raises
    ------
    ExportError
        If it is taken, or its folder is missing.
    """
    if path.is_dir():
        raise ExportError(f"{path} is a folder: give --output the name of a file in it.")
    if path.exists():
        raise ExportError(f"{path} is there already: remove it or give another --output.")
    if not path.parent.is_dir():
        raise ExportError(f"There is no folder {path.parent}: make it or give another --output.")


def metadata_of(saved: SavedRun, cluster: str) -> dict[str, str]:
    """What a safetensors file tells about itself."""
    return {
        "format": "pt",
        "run": saved.path.name,
        "cluster": cluster,
        "model": saved.config.model,
        "input_shape": dumps(saved.kind.input_shape),
        "class_names": dumps(saved.kind.class_names),
    }
