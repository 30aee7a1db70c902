"""Writes a run's model as a file, with its card."""

from collections.abc import Mapping
from hashlib import sha256
from json import dumps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from cflower.algorithm.weights import Weights
from cflower.errors import ConfigError, ExportError, RunFolderError
from cflower.exporting.card import ModelFile, model_card
from cflower.exporting.files import FORMATS, check_file_format, write_model
from cflower.learning.dense import dense_layers
from cflower.messages.data_spec import DataSpec
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
    is_own = not module and "model" in record.config and (folder / File.EXAMPLES).is_file()
    if is_own:
        record = SavedRun(folder, seed_file, own_code)
    name, own = chosen_model(record, client, cluster)
    with outside(folder):
        weights = record.own_model(own, name) if own else record.tree.model_of(name)
    suffix = f"-{Path(own).name.partition('.')[0]}" if own else ""
    path = Path(output or f"{folder.name}-{name}{suffix}{FORMATS[file_format]}").expanduser()
    card = path.with_name(f"{path.name}.md")
    layers = table_layers(record, file_format)
    program = path.with_suffix(".py") if layers is not None else None
    for new in filter(None, (path, card, program)):
        check_free(new)
    try:
        with TemporaryDirectory(dir=path.parent, prefix=".cflower-export-") as place:
            file, text, code = (Path(place) / name for name in ("model", "card", "program"))
            kind = write_file(record, weights, name, file, file_format, module, input_shape)
            digest, source = sha256(file.read_bytes()).hexdigest(), program.name if program else ""
            facts = ModelFile(path.name, file_format, digest, source)
            words = model_card(record, name, kind, facts, client if own else "")
            text.write_text(words, encoding="utf-8")
            if program and kind and record.preparation:
                known = record.preparation, kind.class_names, layers or ()
                code.write_text(program_of(*known, path.name), encoding="utf-8")
            for written in filter(Path.is_file, (file, text, code)):
                written.chmod(PRIVATE)  # the card names the members, as the run folder does
            if program and code.is_file():
                code.replace(program)
            text.replace(card)
            file.replace(path)
    except OSError as error:
        raise ExportError(
            f"Cannot write {path}: {error.strerror}. Give another --output."
        ) from None
    return path


def table_layers(record: RunRecord, file_format: str) -> list[str] | None:
    """The dense layers of a table's model, none of ONNX; None if no program can bring its columns.

    That is so for other layers, and if each client scaled its inputs by statistics of its own.
    """
    if not isinstance(record, SavedRun) or not record.preparation:
        return None
    if record.own.standardise == "client":
        return None
    return [] if file_format == "onnx" else dense_layers(record.module(record.tree.root.model))


def write_file(
    saved: RunRecord,
    weights: Weights,
    cluster: str,
    file: Path,
    file_format: str,
    module: str,
    input_shape: tuple[int, ...],
) -> DataSpec | None:
    """Write a model; what its examples look like, if the run is of cflower's own app."""
    metadata = {"format": "pt", "run": saved.path.name, "cluster": cluster}
    if isinstance(saved, SavedRun):
        kind = saved.kind
        metadata["model"] = saved.own.model
        metadata["input_shape"] = dumps(kind.input_shape)
        metadata["class_names"] = dumps(kind.class_names)
        write_model(saved.module(weights), file, file_format, kind.input_shape, metadata)
        return kind
    arrays = dict(saved.layout.arrays(weights))
    if file_format == "safetensors":
        file.write_bytes(save(arrays, metadata))
    else:
        network = module_of(module, arrays, file_format, input_shape)
        write_model(network, file, file_format, input_shape, metadata)
    return None


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
    reference: str,
    arrays: Mapping[str, NDArray[Any]],
    file_format: str,
    input_shape: tuple[int, ...],
) -> torch.nn.Module:
    """The app's PyTorch module with these arrays, on the CPU, in evaluation mode."""
    if not reference:
        raise ExportError(
            f"The format {file_format} needs the app's PyTorch module: give --module "
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
    """Refuse a path that exists or is in no folder."""
    if path.exists():
        raise ExportError(f"{path} exists: give --output the name of a new file.")
    if not path.parent.is_dir():
        raise ExportError(f"There is no folder {path.parent}: make it or give another --output.")
