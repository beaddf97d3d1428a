"""Charts: what is drawn where, for any numbers."""

from hypothesis import given
from hypothesis import strategies as st

from lakeops.web.charts import HEIGHT, LEFT, TOP, WIDTH, Point, lag_area, size_bars

POINTS = st.lists(
    st.builds(Point, st.integers(0, 4_000_000_000), st.integers(0, 1 << 62)), min_size=1, max_size=40
).map(lambda points: sorted(points, key=lambda point: point.at))


@given(POINTS)
def test_bars_stay_inside_the_picture(points):
    chart = size_bars("Garbage", "in words", points)
    assert len(chart.bars) == len(points)
    for bar in chart.bars:
        assert LEFT <= bar.x <= bar.x + bar.width <= WIDTH
        assert TOP - 0.1 <= bar.y <= bar.y + bar.height <= HEIGHT
    highest = max(range(len(points)), key=lambda number: points[number].value)
    assert chart.bars[highest].height == max(bar.height for bar in chart.bars)


@given(POINTS)
def test_an_area_goes_on_from_number_to_number(points):
    chart = lag_area("Lag", "in words", points)
    assert chart.line.count("H") == len(points) - 1
    assert chart.area.endswith("Z")


def labels(chart):
    return [label for _, label in chart.heights]


def test_labels_are_round():
    assert labels(size_bars("", "", [Point(0, 730_000), Point(1, 5)])) == ["0", "500.0 kB", "1.0 MB"]
    assert labels(lag_area("", "", [Point(0, 700), Point(1, 5)])) == ["0", "10 min", "20 min"]
    assert labels(lag_area("", "", [Point(0, 0), Point(1, 0)])) == ["0", "30 s", "60 s"]
    months = lag_area("", "", [Point(0, 1), Point(86_400 * 40, 1)]).moments
    assert [label for _, label, _ in months] == ["Jan 01", "Jan 21", "Feb 10"]
