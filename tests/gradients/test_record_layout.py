"""Records first, whatever the tensor looked like."""

import torch

from steppe.gradients.layout import RecordLayout


def test_every_arrangement_comes_back_records_first() -> None:
    records = torch.arange(3 * 4 * 2).view(3, 4, 2)
    time_major = records.transpose(0, 1)
    assert torch.equal(RecordLayout(1).records_first(time_major, 3), records)
    assert torch.equal(RecordLayout().records_first(records.flatten(0, 1), 3), records)
    interleaved = RecordLayout(0, interleaved=True)
    assert torch.equal(interleaved.records_first(time_major.flatten(0, 1), 3), records)
    assert RecordLayout().records_first(records, 3) is records


def test_split_keeps_the_rank_of_a_record() -> None:
    time_major = torch.zeros(4, 3, 2)
    assert RecordLayout(1).split(time_major, 3).shape == (3, 4, 1, 2)
    assert RecordLayout(0, True).split(torch.zeros(12, 2), 3).shape == (3, 4, 2)


def test_fits_asks_for_whole_rows() -> None:
    assert RecordLayout(1).fits((4, 6), 3)
    assert not RecordLayout(1).fits((4, 5), 3)
    assert not RecordLayout(2).fits((4, 6), 3)


def test_fits_asks_for_the_same_sizes_a_record() -> None:
    seen = RecordLayout.of((4, 6, 5), records=3, axis=1)
    assert seen == RecordLayout(1, rows=2, rest=(4, 5))
    assert seen.fits((4, 14, 5), 7)
    for other in ((3, 14, 5), (4, 14, 6), (4, 14), (4, 14, 5, 1), (4, 13, 5), (4,)):
        assert not seen.fits(other, 7)


def test_holds_asks_for_the_record_axis_alone() -> None:
    seen = RecordLayout.of((6, 5), records=3, axis=0)
    assert seen.holds((14, 1), 7)
    assert not seen.holds((7, 5), 7)
