"""How a word of the configuration names GPUs. Pure."""

import re
from collections.abc import Iterable

from node_agent.model.gpu import Gpu


def matches(pattern: str, text: str) -> bool:
    """Whether the whole text matches a pattern in which ``*`` stands for anything, upper and lower case alike."""
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, text, re.IGNORECASE | re.DOTALL) is not None


def names(word: str, gpu: Gpu) -> bool:
    """Whether a word means this GPU: by UUID, index, stable name or product pattern."""
    return word in (gpu.uuid, str(gpu.index), gpu.name) or matches(word, gpu.product)


def named(words: Iterable[str], gpu: Gpu) -> bool:
    """Whether one of the words means this GPU."""
    return any(names(word, gpu) for word in words)
