"""A run's model as a file with its card beside it."""

from collections.abc import Mapping
from difflib import get_close_matches
from hashlib import sha256
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from cflower.errors import CFlowerError, ConfigError, ExportError, RunFolderError
from cflower.exporting.card import ModelFile, model_card
from cflower.exporting.files import FORMATS, check_format, write_model
from cflower.newcomers.pytorch_run import SavedRun
from cflower.own_code import own_function
from cflower.runs.record import RunRecord
from cflower.runs.stored_run import StoredRun
from cflower.settings import check_choice


def export(
    run: Path | str,
    *,
    client: str = "",
    cluster: str = "",
    file_format: str = "",
    output: Path | str = "",
    seed_file: str = "",
    module: str = "",
    input_shape: tuple[int, ...] = (),
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
    module : str
        For a run of any other app than cflower's own, as "torchscript" or "onnx":
        ``package.module:factory``, which called without arguments returns the PyTorch module that
        the run's arrays are of. "safetensors" needs none: the arrays have the app's own names.
    input_shape : tuple of int
        With ``module``: shape of one example, float32.

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
    record = RunRecord.read(folder)
    if not record.clusters:
        raise RunFolderError(
            f"The run {folder.name} has no models yet: its first round is not over."
        )
    own = not module and "model" in record.config and (folder / "examples.json").is_file()
    saved = SavedRun.read(folder, seed_file) if own else StoredRun.read(folder)
    name = cluster_of(record, client, cluster)
    path = Path(output or f"{folder.name}-{name}{FORMATS[file_format]}").expanduser()
    card = path.with_name(f"{path.name}.md")
    check_free(path)
    check_free(card)
    weights = saved.weights(name)
    metadata = {"format": "pt", "run": folder.name, "cluster": name, **looks_of(saved)}
    try:
        with TemporaryDirectory(dir=path.parent, prefix=".cflower-export-") as place:
            file, text = Path(place) / "model", Path(place) / "card"
            if isinstance(saved, SavedRun):
                shape = saved.kind.input_shape
                write_model(saved.module(weights), file, file_format, shape, metadata)
            elif file_format == "safetensors":
                file.write_bytes(save(dict(saved.layout.arrays(weights)), metadata))
            else:
                arrays = saved.layout.arrays(weights)
                network = module_of(module, arrays, file_format, input_shape)
                write_model(network, file, file_format, input_shape, metadata)
            told = ModelFile(path.name, file_format, sha256(file.read_bytes()).hexdigest())
            kind = saved.kind if isinstance(saved, SavedRun) else None
            text.write_text(model_card(record, name, kind, told))
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


def module_of(
    reference: str,
    arrays: Mapping[str, NDArray[Any]],
    file_format: str,
    input_shape: tuple[int, ...],
) -> torch.nn.Module:
    """The app's PyTorch module with these arrays in it, on the CPU, in evaluation mode.

    Raises
    ------
    ConfigError, ExportError
        If there is no such module, or the arrays are not its own.
    """
    if not reference:
        raise ExportError(
            f"The format {file_format} needs the app's PyTorch module: give --module "
            "package.module:factory and --input-shape, or choose safetensors."
        )
    try:
        module = own_function("--module", reference)()
        module.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
        module.eval()(torch.zeros(2, *input_shape))
    except CFlowerError:
        raise
    except Exception as error:  # a factory from outside can fail in any way
        problem = " ".join(str(error).split())
        raise ExportError(
            f"{reference} does not give a module for the run's arrays and --input-shape "
            f"{','.join(map(str, input_shape)) or 'not given'} ({type(error).__name__}: {problem})."
        ) from None
    return cast(torch.nn.Module, module)


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


def looks_of(saved: StoredRun) -> dict[str, str]:
    """What a safetensors file tells of the model and of what it takes, where the run knows it."""
    if not isinstance(saved, SavedRun):
        return {}
    return {
        "model": saved.own.model,
        "input_shape": dumps(saved.kind.input_shape),
        "class_names": dumps(saved.kind.class_names),
    }
