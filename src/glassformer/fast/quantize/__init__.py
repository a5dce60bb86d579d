"""Few bits with their error: rounding by what a text needs, and a report of what it costs, matrix
by matrix.

text = Text.of(shards, model.config, tokens=16384, measured=2048)
report = quantize_model(model, Layout(bits=4), text)
"""

from ..quantized import QuantizedLayout as QuantizedLayout
from .calibration import Text as Text
from .display import picture as picture
from .quantization_report import QuantizationReport as QuantizationReport
from .quantizing import quantize_model as quantize_model
