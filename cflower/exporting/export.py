"""Writes a run's model as a file, with its card."""

from collections.abc import Mapping
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from cflower.errors import ConfigError, ExportError, RunFolderError
from cflower.exporting.card import ModelFile, model_card
from cflower.exporting.files import FORMATS, check_file_format, write_onnx
from cflower.learning.dense import dense_layers
from cflower.newcomers.pytorch_run import SavedRun
from cflower.own_code import own_function
from cflower.runs.reading import outside
from cflower.runs.record import RunRecord
from cflower.runs.records import File
from cflower.runs.writing import PRIVATE
from cflower.settings import check_choice, did_you_mean
from cflower.tables.program import program as program_of


def export(
    run: Path | str,
    *,
    client: str = "",
    cluster: str = "",
    file_format: str = "",
    output: Path | str = "",
    seed_file: str = "",
    own_code: bool = False,
    module: str = "",
    input_shape: tuple[int, ...] = (),
) -> Path:
    """Write one model of a run as a file, and a model card next to it.

    Parameters
    ----------
    run : Path or str
        The run folder.
    client : str
        Selects the model that serves this client. Either this or ``cluster``.
    cluster : str
        Selects this cluster's model, such as ``0.1``; ``0`` is the model for all.
    file_format : str
        "safetensors" (the arrays) or "onnx" (runs without cflower), which is read back and compared
        with the model. By default the ending of ``output`` decides.
    output : Path or str
        The file; by default ``<run-id>-<cluster>`` in the working folder. The card's name is the
        file's with ``.md`` added; a table's model comes with a Python file, which ends in ``.py``.
    seed_file : str
        The clients' secret, if the run's weights were permuted: the file holds the true model.
    own_code : bool
        Permits running the Python function that the run's config may name as its model.
    module : str
        For a run of any other app, as "onnx": ``package.module:factory``, which
        returns the PyTorch module of the run's arrays when called without arguments.
    input_shape : tuple of int
        With ``module``: shape of one example, float32.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ConfigError, RunFolderError
        If there is no such client, cluster or format, or the run folder is damaged.
    ExportError
        If the file exists or cannot be written; then nothing is left behind.
    """
    file_format = format_of(file_format, str(output))
    folder = Path(run).expanduser()
    record = RunRecord(folder)
    if not record.clusters:
        raise RunFolderError(
            f"The run {folder.name} has no models yet: its first round is not finished."
        )
    if not module and "model" in record.config and (folder / File.EXAMPLES).is_file():
        record = SavedRun(folder, seed_file, own_code)
    name, own = chosen_model(record, client, cluster)
    with outside(folder):
        weights = record.own_model(own, name) if own else record.tree.model_of(name)
    suffix = f"-{Path(own).name.partition('.')[0]}" if own else ""
    path = Path(output or f"{folder.name}-{name}{suffix}{FORMATS[file_format]}").expanduser()
    arrays, metadata = dict(record.layout.arrays(weights)), {"format": "pt"}
    metadata |= {"run": folder.name, "cluster": name}
    network, code = None, ""
    if isinstance(record, SavedRun):
        network, input_shape = record.module(weights), record.kind.input_shape
        arrays = {key: tensor.numpy() for key, tensor in network.state_dict().items()}
        metadata |= {"model": record.own.model, "input_shape": dumps(input_shape)}
        metadata["class_names"] = dumps(record.kind.class_names)
        code = table_program(record, network, file_format, path.name)
    program = path.with_suffix(".py") if code else None
    texts = {program: code} if program else {}
    card = path.with_name(f"{path.name}.md")
    for target in (path, card, *texts):
        check_free(target)
    try:
        with TemporaryDirectory(dir=path.parent, prefix=".cflower-export-") as place:
            file = Path(place) / "model"
            if file_format == "safetensors":
                file.write_bytes(save(arrays, metadata))
            else:
                write_onnx(network or module_of(module, arrays, input_shape), file, input_shape)
            model = ModelFile(path.name, file_format, file.read_bytes(), program)
            texts[card] = model_card(record, name, model, client if own else "")
            written = {target: Path(place) / target.name for target in texts}
            for target, text in texts.items():
                written[target].write_text(text, encoding="utf-8")
            for target, whole in {**written, path: file}.items():
                whole.chmod(PRIVATE)  # the card names the members, as the run folder does
                whole.replace(target)
    except OSError as error:
        raise ExportError(
            f"Cannot write {path}: {error.strerror}. Give another --output."
        ) from None
    return path


def table_program(record: SavedRun, network: torch.nn.Module, file_format: str, file: str) -> str:
    """The Python file that brings a table's columns to a model; empty if none can.

    That is so for other than dense layers, and if each client scaled its inputs by its own
    statistics.
    """
    if not record.preparation or record.own.standardise == "client":
        return ""
    layers = [] if file_format == "onnx" else dense_layers(network)
    known = record.preparation, record.kind.class_names
    return "" if layers is None else program_of(*known, layers, file)


def format_of(file_format: str, output: str) -> str:
    """The format that its name or the ending of the file selects.

    >>> format_of("", "model.onnx"), format_of("", ""), format_of("safetensors", "model.bin")
    ('onnx', 'safetensors', 'safetensors')
    """
    ending = Path(output).suffix.lower()
    by_ending = {usual: name for name, usual in FORMATS.items()}.get(ending, "")
    chosen = file_format or by_ending or "safetensors"
    check_file_format(chosen)
    if by_ending and chosen != by_ending:
        raise ConfigError(
            f"Got --format {file_format} with --output {output}, but files that end in {ending} "
            f"are {by_ending}: leave one of them out, or end the file in {FORMATS[file_format]}."
        )
    return chosen


def module_of(
    reference: str, arrays: Mapping[str, NDArray[Any]], input_shape: tuple[int, ...]
) -> torch.nn.Module:
    """The app's PyTorch module with these arrays, on the CPU, in evaluation mode."""
    if not reference:
        raise ExportError(
            "The format onnx needs the app's PyTorch module: give --module "
            "package.module:factory and --input-shape, or choose safetensors."
        )
    factory = own_function("--module", reference)
    try:
        module = factory()
        module.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()})
        module.eval()(torch.zeros(2, *input_shape))
    except Exception as error:  # a factory from outside can fail in any way
        problem = " ".join(str(error).split())
        raise ExportError(
            f"{reference} does not return a module for the run's arrays and the input shape "
            f"{input_shape} ({type(error).__name__}: {problem}): check --module and --input-shape."
        ) from None
    return cast(torch.nn.Module, module)


def chosen_model(record: RunRecord, client: str, cluster: str) -> tuple[str, str]:
    """The cluster that its name or one of its clients selects, and the file of its own model.

    A client is given the model that serves it. The file is empty for a cluster's model.
    """
    if bool(client) == bool(cluster):
        got = f"client {client!r} and cluster {cluster!r}" if client else "neither"
        raise ConfigError(f"Give a client or a cluster, by --client or --cluster; got {got}.")
    if cluster:
        return check_choice("cluster", cluster, record.clusters), ""
    if client not in (clients := record.summary.clients):
        hint = did_you_mean(client, clients) or ": `cflower show` lists them."
        raise ConfigError(f"The run {record.name} has no client {client!r}{hint}")
    if client in record.summary.not_placed:
        raise ConfigError(f"{client} sent no usable update and has no cluster: give --cluster 0.")
    served = record.summary.clients[client].served
    return served.cluster, (served.file or "") if served.model == "personal" else ""


def check_free(path: Path) -> None:
    if path.exists():
        raise ExportError(f"{path} exists: give --output the name of a new file.")
    if not path.parent.is_dir():
        raise ExportError(f"There is no folder {path.parent}: make it or give another --output.")
