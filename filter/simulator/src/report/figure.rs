//! Figures: what is drawn, and not how.

/// Curves or points over two axes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Figure {
    /// What it shows, with the paper's figure where there is one.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Horizontal reference lines, such as an objective.
    pub levels: Vec<Level>,
    /// Vertical reference lines, such as the begin of a burst.
    pub events: Vec<Level>,
    /// What to see in it; a sentence or two, may be empty.
    pub caption: String,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Axis {
    /// What it measures, with its unit: `time, s`.
    pub label: String,
    /// How values map to it.
    pub scale: Scale,
    /// Its ends; where one is missing, what is drawn decides (the vertical axis begins at 0).
    pub from: Option<f64>,
    /// See `from`.
    pub to: Option<f64>,
}

/// How values map to an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Evenly.
    #[default]
    Linear,
    /// By their logarithm; only values above 0 are drawn.
    Log,
}

/// A curve, or points of one colour.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub style: Style,
    /// Number of its colour; series of one number share it, as ours and the paper's of one strategy do.
    /// `None` gives each its own.
    pub colour: Option<usize>,
    /// Its points, in ascending order of `x` for all but [`Style::Points`] and [`Style::Paper`].
    pub points: Vec<Point>,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Style {
    /// A line with a dot at each point, as long as they are few.
    #[default]
    Line,
    /// A dashed line.
    Dashed,
    /// A value that holds until the next point.
    Steps,
    /// Dots.
    Points,
    /// Hollow dots: the values of a paper.
    Paper,
}

/// A point of a series.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Point {
    /// Horizontal.
    pub x: f64,
    /// Vertical; a line is broken where it is missing.
    pub y: Option<f64>,
    /// A name beside the point; may be empty.
    pub label: String,
}

/// A reference line.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Level {
    /// Where.
    pub at: f64,
    /// Its name; may be empty.
    pub label: String,
}

impl Axis {
    /// An axis whose ends are those of what is drawn.
    #[must_use]
    pub fn new(label: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            ..Self::default()
        }
    }

    /// This axis with these ends.
    #[must_use]
    pub fn between(mut self, from: f64, to: f64) -> Self {
        (self.from, self.to) = (Some(from), Some(to));
        self
    }

    /// This axis with a logarithmic scale.
    #[must_use]
    pub fn log(mut self) -> Self {
        self.scale = Scale::Log;
        self
    }
}

impl Series {
    /// A series of points `(x, y)`.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        style: Style,
        points: impl IntoIterator<Item = (f64, Option<f64>)>,
    ) -> Self {
        let point = |(x, y)| Point {
            x,
            y,
            label: String::new(),
        };
        Self {
            name: name.into(),
            style,
            colour: None,
            points: points.into_iter().map(point).collect(),
        }
    }

    /// This series in the colour of this number.
    #[must_use]
    pub fn coloured(mut self, colour: usize) -> Self {
        self.colour = Some(colour);
        self
    }
}

impl Level {
    /// A line with a name.
    #[must_use]
    pub fn new(at: f64, label: impl Into<String>) -> Self {
        Self {
            at,
            label: label.into(),
        }
    }
}
