"""Calls are told apart by the bits of what goes in and comes out, whatever tensor objects carry them."""

import torch

from noisescope.sweep.witnessing import _Marks


def test_a_mark_is_that_of_the_bits_also_of_a_tensor_that_was_written_into():
    marks, x = _Marks(), torch.arange(6.0)
    first = marks.of([x])
    assert marks.of([x]) == first == marks.of([x.clone()])
    x[2] = 7.0
    assert marks.of([x]) != first
    x[2] = 2.0
    assert marks.of([x]) == first
    x.view(2, 3)[1, 1] = 5.0
    assert marks.of([x]) != first


def test_a_tensor_at_the_place_of_one_that_is_gone_is_read_anew():
    marks = _Marks()
    seen = {marks.of([torch.full((3,), float(i))]) for i in range(50)}
    assert len(seen) == 50


def test_order_and_absence_count():
    marks, x, y = _Marks(), torch.zeros(2), torch.ones(2)
    assert len({marks.of([x, y]), marks.of([y, x]), marks.of([x]), marks.of([])}) == 4


def test_inference_tensors_have_marks_as_well():
    marks = _Marks()
    with torch.inference_mode():
        x = torch.ones(3)
        first = marks.of([x])
        x[0] = 2.0
        assert marks.of([x]) != first
