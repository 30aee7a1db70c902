"""A newcomer's pixels must have the range of the run's."""

import numpy as np
import pytest

from cflower.errors import DataError
from cflower.newcomers.assign import check_pixels


@pytest.mark.parametrize("largest", [16 / 255, 16.0, 255.0])
def test_pixels_of_another_range_are_refused(largest):
    with pytest.raises(DataError, match=r"largest pixel is .* Scale its pixels"):
        check_pixels(np.full((2, 1, 8, 8), largest, np.float32))
    check_pixels(np.full((2, 3), largest, np.float32))
    check_pixels(np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 1, 8, 8))
