"""Modules: layers, cells and blocks as records of configuration, called on tensors of either graph.

A module is made once, holds no arrays, and is called on tensors of a `sublet.Graph` or `sublet.DynamicGraph`; called
again on the same graph it shares its parameters. Your own are classes with a `forward`; see `Module`.
"""

from sublet.modules.attention import CrossAttention, SelfAttention
from sublet.modules.blocks import ConvNorm, Inception, ResidualBlock, TransformerBlock
from sublet.modules.containers import Parallel, Residual, Sequential
from sublet.modules.convolution import Conv, ConvTranspose
from sublet.modules.dropout import Dropout
from sublet.modules.initial import normal, uniform
from sublet.modules.linear import Dense, Embedding
from sublet.modules.module import Module
from sublet.modules.names import pytorch_name
from sublet.modules.normalization import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from sublet.modules.pooling import AvgPool, Flatten, GlobalAvgPool, MaxPool
from sublet.modules.recurrent import GRUCell, LSTMCell, RNNCell
from sublet.modules.sequences import GRU, LSTM, RNN

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
    "normal",
    "pytorch_name",
    "uniform",
]
