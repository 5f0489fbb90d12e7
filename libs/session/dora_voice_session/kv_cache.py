"""KV caches that can be taken back and forked for nothing, and transformers' own for all other models.

Imported only where torch is there.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakSet

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, get_layer_types_and_kwargs

BLOCK = 256
"""Tokens by which a cache grows."""


def room(tokens: int) -> int:
    """Tokens that are allocated for so many."""
    return -(-tokens // BLOCK) * BLOCK


def has_plain_attention_only(model: Any) -> bool:
    """Whether transformers itself would keep all keys and values of every layer, and nothing else."""
    config = model.config.get_text_config(decoder=True)
    if model._is_stateful or not model._supports_default_dynamic_cache():
        return False
    layer_types, _ = get_layer_types_and_kwargs(config)
    return len(layer_types) == config.num_hidden_layers and set(layer_types) == {"full_attention"}


class BlockCache(Cache):
    """Attention keys and values with room to grow; transformers takes it as `cache=`.

    Forks share memory. The first write that would change what another fork reads copies it.
    """

    layers: list[BlockLayer]

    def __init__(self, layers: list[BlockLayer]) -> None:
        super().__init__(layers=layers)  # type: ignore[arg-type]

    @classmethod
    def for_model(cls, model: Any) -> BlockCache:
        """An empty one."""
        layers = model.config.get_text_config(decoder=True).num_hidden_layers
        return cls([BlockLayer() for _ in range(layers)])

    @property
    def length(self) -> int:
        return self.layers[0].length

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def keep(self, length: int) -> None:
        """Crops to the first `length` tokens. Moves no memory."""
        for layer in self.layers:
            layer.length = min(layer.length, length)

    def fork(self) -> BlockCache:
        return BlockCache([layer.fork() for layer in self.layers])

    def to(self, device: str) -> BlockCache:
        """A copy there, without the unused room."""
        return BlockCache([layer.to(device) for layer in self.layers])


class BlockLayer(CacheLayerMixin):
    """One layer of a `BlockCache`: a view of the first `length` tokens of a block that forks may share."""

    is_sliding = False
    is_croppable = True

    def __init__(self, block: _Block | None = None, length: int = 0) -> None:
        super().__init__()
        self.length = length
        self._block = block
        if block is not None:
            block.readers.add(self)

    @property
    def nbytes(self) -> int:
        return 0 if self._block is None else self._block.keys.nbytes + self._block.values.nbytes

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Appends keys and values, (1, heads, new tokens, width) each. Returns all of them."""
        end = self.length + key_states.shape[-2]
        block = self._writable(end, key_states, value_states)
        block.keys[:, :, self.length : end] = key_states
        block.values[:, :, self.length : end] = value_states
        block.written = self.length = end
        return block.keys[:, :, :end], block.values[:, :, :end]

    def fork(self) -> BlockLayer:
        return BlockLayer(self._block, self.length)

    def to(self, device: str) -> BlockLayer:
        if self._block is None:
            return BlockLayer()
        keys, values = (states[:, :, : self.length] for states in (self._block.keys, self._block.values))
        return BlockLayer(_Block(keys.to(device, copy=True), values.to(device, copy=True), self.length), self.length)

    def _writable(self, end: int, key_states: Tensor, value_states: Tensor) -> _Block:
        """The block, or a copy if it is too small or another fork reads what would be overwritten."""
        block = self._block
        if block is not None and end <= block.room and (self.length == block.written or len(block.readers) == 1):
            return block
        copied = _Block(_with_room(key_states, end), _with_room(value_states, end), self.length)
        if block is not None:
            copied.keys[:, :, : self.length] = block.keys[:, :, : self.length]
            copied.values[:, :, : self.length] = block.values[:, :, : self.length]
            block.readers.discard(self)
        copied.readers.add(self)
        self._block = copied
        return copied

    # What transformers asks of a layer

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """`update` allocates."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1


class _Block:
    """Keys and values, (1, heads, room, width) each, of which the first `written` tokens are somebody's."""

    def __init__(self, keys: Tensor, values: Tensor, written: int) -> None:
        self.keys, self.values, self.written = keys, values, written
        self.room = keys.shape[-2]
        self.readers: WeakSet[BlockLayer] = WeakSet()


def _with_room(states: Tensor, tokens: int) -> Tensor:
    batch, heads, _, width = states.shape
    return states.new_empty(batch, heads, room(tokens), width)


class ForeignCache:
    """Whatever transformers keeps for a model (windows, recurrent states), and how many tokens it has seen.

    It forgets on the way, so it can't be taken back.
    """

    def __init__(self, state: Any = None, length: int = 0) -> None:
        self.state = state
        """None before the first token: the model makes it."""
        self.length = length

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in tensors_in(self.state))

    def fork(self) -> ForeignCache:
        return ForeignCache(copy.deepcopy(self.state), self.length)

    def to(self, device: str) -> ForeignCache:
        """A copy there."""
        moved = {id(tensor): tensor.to(device, copy=True) for tensor in tensors_in(self.state)}
        return ForeignCache(copy.deepcopy(self.state, moved), self.length)


def tensors_in(value: Any, seen: set[int] | None = None) -> Iterator[Tensor]:
    """All tensors in an object, its attributes, and the containers in them; each once."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, (list, tuple)):
        parts = value
    elif hasattr(value, "__dict__"):
        parts = vars(value).values()
    for part in parts:
        yield from tensors_in(part, seen)
