//! The data of figures, independent of their drawing.

/// Curves or points over two axes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figure {
    /// The title, with the number of the paper's figure if one exists.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The series to draw.
    pub series: Vec<Series>,
    /// Horizontal reference lines, such as an objective.
    pub levels: Vec<Level>,
    /// Vertical reference lines, such as the start of a burst.
    pub events: Vec<Level>,
    /// An explanation in one or two sentences; may be empty.
    pub caption: String,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Axis {
    /// The quantity and its unit, such as `time, s`.
    pub label: String,
    /// The mapping of values to positions.
    pub scale: Scale,
    /// The smallest value. `None` derives this value from the data. A linear vertical axis then
    /// begins at 0, unless values are negative.
    pub from: Option<f64>,
    /// The largest value. `None` derives this value from the data.
    pub to: Option<f64>,
}

/// The mapping of values to positions on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Linear.
    #[default]
    Linear,
    /// Logarithmic. Only values above 0 are drawn.
    Log,
}

/// A curve, or points of one colour.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// The series' name in the legend.
    pub name: String,
    /// The drawing style.
    pub style: Style,
    /// The index of the series' colour. Series with the same index share a colour, such as our
    /// curve and the paper's curve of one strategy. `None` gives the series its own colour.
    pub colour: Option<usize>,
    /// The points, as x and y, in ascending order of x for all styles but [`Style::Paper`]. A y of
    /// `None` breaks a line.
    pub points: Vec<(f64, Option<f64>)>,
}

/// The drawing style of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// A line, with a dot at each point if the points are few.
    #[default]
    Line,
    /// A dashed line.
    Dashed,
    /// Hollow dots: the values of a paper.
    Paper,
}

/// A reference line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Level {
    /// The value on its axis.
    pub at: f64,
    /// The line's name; may be empty.
    pub label: String,
}

impl Axis {
    /// Returns an axis whose ends are derived from the data.
    pub fn new(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            ..Self::default()
        }
    }

    /// Returns this axis with these ends.
    #[must_use]
    pub fn between(mut self, from: f64, to: f64) -> Self {
        (self.from, self.to) = (Some(from), Some(to));
        self
    }

    /// Returns this axis with a logarithmic scale.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.scale = Scale::Log;
        self
    }
}

impl Series {
    /// Returns a series of points `(x, y)`.
    pub fn new(
        name: impl Into<String>,
        style: Style,
        points: impl IntoIterator<Item = (f64, Option<f64>)>,
    ) -> Self {
        Self {
            name: name.into(),
            style,
            colour: None,
            points: points.into_iter().collect(),
        }
    }

    /// Returns this series with the colour of this index.
    #[must_use]
    pub fn coloured(mut self, colour: usize) -> Self {
        self.colour = Some(colour);
        self
    }
}

impl Level {
    /// Returns a line with a name.
    pub fn new(at: f64, label: impl Into<String>) -> Self {
        Self {
            at,
            label: label.into(),
        }
    }
}
