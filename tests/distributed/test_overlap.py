"""Communication overlaps with computation: the order in which a rank sends, orthogonalizes and receives buckets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from muonlab.optim.distributed.pipeline import DistributedPipeline


class Recorded(DistributedPipeline):
    """A pipeline that notes what it would do with each bucket."""

    def __init__(self) -> None:
        super().__init__(SimpleNamespace(bucket_bytes=0), lambda *_: None)
        self.events: list[str] = []

    def _note(self, what, bucket):
        self.events.append(f"{what} {bucket.batches[0].name}")
        return bucket

    def _send_to_owners(self, bucket):
        return self._note("send", bucket)

    def _orthogonalize_owned(self, bucket):
        return self._note("orthogonalize", bucket)

    def _receive(self, bucket):
        self._note("receive", bucket)
        return [(batch, []) for batch in bucket.batches]


def run(pipeline, count: int) -> list[str]:
    """Return the events of a step with so many buckets, and see that each batch comes back once, in order."""
    batches = [SimpleNamespace(name=i, shape=(1, 1), pieces=[0], directions=[torch.ones(1)]) for i in range(count)]
    finished = [batch for batch in batches for batch, _ in pipeline.orthogonalize(batch)]
    finished += [batch for batch, _ in pipeline.finish()]
    assert [batch.name for batch in finished] == list(range(count))
    return pipeline.events


def check_overlap(events: list[str], count: int) -> None:
    """See that two messages are always on their way while a bucket is orthogonalized, but at the ends."""
    when = {event: i for i, event in enumerate(events)}
    for i in range(count - 1):
        assert when[f"send {i + 1}"] < when[f"orthogonalize {i}"]
        assert when[f"orthogonalize {i + 1}"] < when[f"receive {i}"]
    for i in range(count - 2):  # and no more than two, which bounds the memory
        assert when[f"receive {i}"] < when[f"orthogonalize {i + 2}"]
        assert when[f"orthogonalize {i}"] < when[f"send {i + 2}"]


def test_a_bucket_is_sent_before_the_one_before_it_is_orthogonalized_and_received_after_the_next_one():
    for count in (1, 2, 5):
        check_overlap(run(Recorded(), count), count)


def test_a_pipeline_that_waits_for_each_bucket_fails_the_check():
    class Waiting(Recorded):
        def _advance(self, bucket):
            return self._receive(self._orthogonalize_owned(self._send_to_owners(bucket)))

    with pytest.raises(AssertionError):
        check_overlap(run(Waiting(), 5), 5)
