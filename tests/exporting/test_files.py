import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from cflower.errors import ConfigError, ExportError
from cflower.exporting import files
from cflower.exporting.files import WindowMax, check_file_format, onnx_logits, write_onnx
from cflower.learning.models import build_model
from tests.algorithm.planted import laws
from tests.exporting.onnx_packages import needs_onnx


@laws
@given(st.integers(4, 30), st.integers(4, 30), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_window_max_is_adaptive_pooling(height, width, outputs, seed):
    images = torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(seed))
    expected = nn.AdaptiveMaxPool2d(outputs)(images)
    assert torch.equal(WindowMax(outputs)(images), expected)


@pytest.mark.slow
@needs_onnx
def test_a_file_answers_as_the_model_for_any_batch(tmp_path):
    shape = (1, 28, 28)  # 14 pixels are not pooled to 4 in equal steps: ONNX cannot
    model = build_model("cnn", shape, 10, seed=0).eval()
    write_onnx(model, tmp_path / "model", shape)
    for batch in (1, 2, 17):
        inputs = torch.rand(batch, *shape)
        with torch.no_grad():
            expected = model(inputs).numpy()
        answers = onnx_logits(tmp_path / "model", inputs)
        np.testing.assert_allclose(answers, expected, atol=1e-5)


@pytest.mark.slow
@needs_onnx
def test_a_file_with_other_answers_is_refused(tmp_path, monkeypatch):
    model = build_model("mlp", (4,), 3, seed=0).eval()
    monkeypatch.setattr(files, "onnx_logits", lambda *_: np.zeros((1, 3)))
    with pytest.raises(ExportError, match="its logits differ by more than"):
        write_onnx(model, tmp_path / "model", (4,))


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(files, "find_spec", lambda name: None if name == "onnxruntime" else name)
    check_file_format("safetensors")
    with pytest.raises(ExportError, match=r"pip install onnxruntime, or choose"):
        check_file_format("onnx")
    with pytest.raises(ConfigError, match="format = 'onx' is not known: did you mean 'onnx'"):
        check_file_format("onx")
