"""A model as a file that other programs read: safetensors, TorchScript, ONNX."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from cflower.errors import ExportError
from cflower.settings import check_choice

FORMATS = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}
"""What a model can be written as, and the usual ending of such a file."""
jit: Any = torch.jit  # not typed
TOLERANCE = 1e-5
"""Largest difference of a logit, relative to the largest logit where that is above 1."""
NEEDED_FOR_ONNX = ("onnx", "onnxruntime", "onnxscript")


def check_format(name: str) -> None:
    """Refuse a format that is unknown, or that needs what is not installed.

    Raises
    ------
    ConfigError
        If there is no such format.
    ExportError
        If the format's packages are not installed.
    """
    check_choice("format", name, FORMATS)
    missing = [package for package in NEEDED_FOR_ONNX if find_spec(package) is None]
    if name == "onnx" and missing:
        raise ExportError(
            f"The format onnx needs {', '.join(missing)}, not installed here: install it with "
            "pip install 'cflower[export]', or choose safetensors or torchscript."
        )


def write_model(
    model: nn.Module,
    path: Path,
    file_format: str,
    input_shape: tuple[int, ...],
    metadata: Mapping[str, str],
) -> None:
    """Write a model, read it back and compare what it answers.

    Parameters
    ----------
    model : torch.nn.Module
        On the CPU, in evaluation mode; takes float32 of shape (batch, *input_shape), any batch.
    path : Path
        Replaced if it is there.
    file_format : str
        One of `FORMATS`.
    input_shape : tuple of int
        Of one example.
    metadata : mapping of str to str
        Kept in a safetensors file, whose arrays alone do not tell what model they are of.

    Raises
    ------
    ExportError
        If the file's answers are not the model's.
    """
    # Two examples: a batch of one would be taken for a constant.
    example = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
    if file_format == "safetensors":
        path.write_bytes(save(dict(model.state_dict()), dict(metadata)))
        return  # the arrays themselves: nothing was translated
    if file_format == "torchscript":
        with jit_allowed():
            jit.save(jit.trace(model, example), path)
    else:
        try:
            torch.onnx.export(
                with_plain_pooling(model, input_shape),
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
                "safetensors or torchscript."
            ) from None
    for size in (1, 3):
        inputs = torch.rand(size, *input_shape, generator=torch.Generator().manual_seed(size))
        check_same(model, inputs, answers_of(path, file_format, inputs))


def answers_of(path: Path, file_format: str, inputs: Tensor) -> NDArray[Any]:
    """What a TorchScript or ONNX file answers to these inputs, shape (batch, num_classes)."""
    if file_format == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return np.asarray(session.run(None, {"input": inputs.numpy()})[0])
    with jit_allowed(), torch.no_grad():
        return np.asarray(jit.load(path)(inputs))


@contextmanager
def jit_allowed() -> Iterator[None]:
    """Without the warning that PyTorch itself has moved on: programs in C++ and Java have not."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.*deprecated", FutureWarning)
        yield


def check_same(model: nn.Module, inputs: Tensor, answers: NDArray[Any]) -> None:
    """Refuse a file that does not answer as the model does.

    Raises
    ------
    ExportError
        If their logits differ by more than `TOLERANCE`.
    """
    with torch.no_grad():
        expected = np.asarray(model(inputs))
    same_shape = answers.shape == expected.shape
    worst = float(np.abs(answers - expected).max()) if same_shape else np.inf
    if not worst <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise ExportError(
            f"The file was not written: read back, its logits differ by up to {worst:.2g} from "
            "the model's; choose another format."
        )


def with_plain_pooling(model: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """The same function without adaptive pooling, which ONNX does not have.

    Parameters
    ----------
    model : torch.nn.Module
        Layers one after another (`nn.Sequential`), or any model without adaptive pooling.
    input_shape : tuple of int
        Of one example: it decides the windows that are pooled.
    """
    if not isinstance(model, nn.Sequential):
        return model
    layers, values = [], torch.zeros(1, *input_shape)
    for layer in model:
        plain: nn.Module = layer
        if isinstance(layer, nn.AdaptiveMaxPool2d):
            outputs: Any = layer.output_size
            plain = WindowMax(values.shape[2:], outputs)
        layers.append(plain)
        values = layer(values)
    return nn.Sequential(*layers).eval()


class WindowMax(nn.Module):
    """`nn.AdaptiveMaxPool2d` for images of one size: the maximum of every window.

    Parameters
    ----------
    sides : tuple of int
        Height and width of the images.
    outputs : int
        Windows along either side; window i of n goes from floor(i * side / n) to
        ceil((i + 1) * side / n).
    """

    def __init__(self, sides: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.windows = [
            [(i * side // outputs, -(-(i + 1) * side // outputs)) for i in range(outputs)]
            for side in sides
        ]

    def forward(self, images: Tensor) -> Tensor:  # shape: (batch, channels, height, width)
        for axis, windows in enumerate(self.windows, start=2):
            parts = [images.narrow(axis, a, b - a).amax(axis, keepdim=True) for a, b in windows]
            images = torch.cat(parts, dim=axis)
        return images
