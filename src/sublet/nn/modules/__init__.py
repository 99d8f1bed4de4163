"""Modules: layers, cells and blocks as records of configuration, called on tensors of symbolic or dynamic graphs.

A module is created once, holds no arrays, and is called on tensors of a `sublet.Graph` or `sublet.DynamicGraph`; called
again on the same graph, the module shares its parameters. User-defined modules are classes with a `forward`; see
`Module`. Every call raises SpecError, beginning with the user's line, for inputs without the documented axes.
"""

from sublet.nn.modules.containers import (
    ConvNorm,
    Inception,
    Parallel,
    Residual,
    ResidualBlock,
    Sequential,
    TransformerBlock,
)
from sublet.nn.modules.convolution import AvgPool, Conv, ConvTranspose, Flatten, GlobalAvgPool, MaxPool
from sublet.nn.modules.linear import CrossAttention, Dense, Embedding, SelfAttention
from sublet.nn.modules.module import (
    Module,
    kaiming_normal,
    kaiming_uniform,
    normal,
    pytorch_name,
    uniform,
    xavier_normal,
    xavier_uniform,
)
from sublet.nn.modules.normalization import BatchNorm, Dropout, GroupNorm, LayerNorm, RMSNorm
from sublet.nn.modules.recurrent import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "AvgPool",
    "BatchNorm",
    "Conv",
    "ConvNorm",
    "ConvTranspose",
    "CrossAttention",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GRUCell",
    "GlobalAvgPool",
    "GroupNorm",
    "Inception",
    "LSTMCell",
    "LayerNorm",
    "MaxPool",
    "Module",
    "Parallel",
    "RMSNorm",
    "RNNCell",
    "Residual",
    "ResidualBlock",
    "SelfAttention",
    "Sequential",
    "TransformerBlock",
    "kaiming_normal",
    "kaiming_uniform",
    "normal",
    "pytorch_name",
    "uniform",
    "xavier_normal",
    "xavier_uniform",
]
