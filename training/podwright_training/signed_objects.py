"""Sign the objects that ranks send each other, and load no others.

PyTorch pickles the objects of its collectives (``all_gather_object``, ``scatter_object_list`` and so on; its checkpoint
writer uses them too) and unpickles what arrives, which may run any code. Whoever reaches a rank's port can send to it.
So each pickle carries a tag that only processes of the run can compute, and a rank looks at nothing else.
"""

from __future__ import annotations

import hmac
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any

from torch.distributed import distributed_c10d

from podwright_training.errors import ForgedMessageError
from podwright_training.replacement import replaced
from podwright_training.run_secret import TAG_BYTES, tag

LABEL = b"object"


@contextmanager
def signed_objects(secret: bytes) -> Iterator[None]:
    """Let collectives of objects load only what a process signed that knows the secret."""
    with (
        replaced(distributed_c10d, "_pickler", partial(_Pickler, secret)),
        replaced(distributed_c10d, "_unpickler", partial(_Unpickler, secret)),
    ):
        yield


class _Pickler:
    def __init__(self, secret: bytes, file: IO[bytes]) -> None:
        self._secret, self._file = secret, file

    def dump(self, item: Any) -> None:
        content = pickle.dumps(item)
        self._file.write(tag(self._secret, LABEL, content) + content)


class _Unpickler:
    def __init__(self, secret: bytes, file: IO[bytes]) -> None:
        self._secret, self._file = secret, file

    def load(self) -> Any:
        received, content = self._file.read(TAG_BYTES), self._file.read()
        if not hmac.compare_digest(received, tag(self._secret, LABEL, content)):
            raise ForgedMessageError("a message arrived that no rank of this run has sent; it was not read")
        return pickle.loads(content)  # noqa: S301 - our own
