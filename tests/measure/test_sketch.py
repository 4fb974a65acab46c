"""What is kept of a stream of rows: the same however it comes in parts, and close to what brute force says."""

import pytest
import torch

from noisescope.core.errors import BadInputError
from noisescope.measure.sketch import Sketcher


def sketched(x, parts=1000, **how):
    sketcher = Sketcher(3, **how)
    for part in x.split(parts):
        sketcher.update(part)
    return sketcher.result()


def values(rows=500, width=24, seed=0):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("parts", [1, 37, 499])
def test_parts_make_no_difference(parts):
    one, other = sketched(values()), sketched(values(), parts)
    assert torch.equal(one.rows, other.rows) and one.mark == other.mark and one.count == other.count
    torch.testing.assert_close(one.lines, other.lines)
    torch.testing.assert_close(one.figures, other.figures)


def test_the_projection_is_a_sum_with_random_signs():
    x = torch.eye(64)
    lines = sketched(x, lines=8).lines
    assert set(lines.unique().tolist()) == {-1.0, 1.0}
    assert abs(float(lines.mean())) < 0.2
    # Neighbouring rows and neighbouring lines have nothing to do with each other.
    assert float((lines @ lines.T / 64 - torch.eye(8)).abs().max()) < 0.5


def test_differences_of_projections_estimate_the_error_of_each_channel():
    x, width = values(2000, 40), 40
    size = torch.logspace(-4, -1, width)
    y = x + size * values(2000, 40, seed=1)
    one, other = sketched(x, lines=64), sketched(y, lines=64)
    found = ((one.lines.double() - other.lines.double()).square().mean(0) / 2000).sqrt()
    # 64 lines estimate within 1 / sqrt(2 * 64) = 9 %.
    assert float((found / size - 1).abs().max()) < 0.35
    assert abs(float((found / size - 1).mean())) < 0.05


def test_one_wrong_value_in_a_row_that_is_not_kept_shows():
    x = values(3000, 8)
    y = x.clone()
    y[1234, 5] += 3.0
    one, other = sketched(x), sketched(y)
    error = ((one.lines - other.lines).square().mean(0) / 3000).sqrt()
    assert error.nonzero().flatten().tolist() == [5]
    assert float(error[5]) == pytest.approx(3.0 / 3000**0.5, rel=1e-3)


def test_fewer_kept_rows_are_the_first_of_more():
    more, fewer = sketched(values(), rows=16), sketched(values(), 7, rows=5)
    assert torch.equal(more.rows[:5], fewer.rows)
    assert all(any(torch.equal(row, other) for other in values()) for row in more.rows)


def test_figures_are_those_of_a_slow_loop():
    x = values(50, 3)
    x[4, 0], x[5, 1], x[6, 1], x[7] = float("nan"), 9.0, -9.0, 0.0
    found = sketched(x, 6)
    kept = x[:, 1]
    assert found.figure("lost").tolist() == [1.0, 0.0, 0.0]
    assert found.figure("zeros").tolist() == [2.0, 1.0, 1.0]
    assert (found.figure("least")[1], found.figure("largest")[1], found.figure("ties")[1]) == (-9.0, 9.0, 2.0)
    assert float(found.figure("sum")[1]) == pytest.approx(float(kept.sum()), abs=1e-5)
    assert float(found.size[1]) == pytest.approx(float(kept.square().mean().sqrt()), rel=1e-6)


def test_all_rows_are_kept_where_that_is_asked():
    assert torch.equal(sketched(values(), 33, keeps_all=True).full, values())


def test_another_width_is_refused():
    sketcher = Sketcher()
    sketcher.update(values(2, 3))
    with pytest.raises(BadInputError, match="4 channels after rows of 3"):
        sketcher.update(values(2, 4))
    with pytest.raises(BadInputError, match="no rows"):
        Sketcher().result()
