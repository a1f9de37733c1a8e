//! System identification (Chronos §4). It finds the coefficients of Eq. 4 from a trace, by least
//! squares, and the quality of their predictions.
//!
//! s(k) = Σᵢ aᵢ s(k−i) + bᵢ d(k−i). Eq. 4 has no constant term, so it holds only around an
//! operating point. A constant is fitted together with the coefficients and left out of the model.
//! The paper fits the square roots of delays and backlogs. [`Transform::SquareRoot`] does the same
//! for comparison. Gains from such a model apply to square roots, too, so a controller of the
//! delays themselves can't use them.

use super::plant::Plant;
use super::qr::least_squares;
use crate::measured::{mean, variance};

/// The highest order of a model.
pub const MAX_ORDER: usize = 4;
/// The maximum number of columns, which are the coefficients and the constant.
const MAX_COLUMNS: usize = 2 * MAX_ORDER + 1;
/// The increase of R² that justifies a higher order.
const WORTH: f64 = 0.01;
/// The minimum number of samples per coefficient.
const SAMPLES_A_COEFFICIENT: usize = 5;

/// Samples without a gap, one per period.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Segment {
    /// The mean service delay of each period, s.
    pub delays: Vec<f64>,
    /// The backlog at the end of each period.
    pub backlogs: Vec<f64>,
}

/// A transformation of the samples before the fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transform {
    /// No transformation.
    #[default]
    None,
    /// The square roots of delays and backlogs, as in the paper.
    SquareRoot,
}

impl Transform {
    fn of(self, x: f64) -> f64 {
        match self {
            Self::None => x,
            Self::SquareRoot => x.max(0.0).sqrt(),
        }
    }
}

/// A model and the quality of its fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The model.
    pub plant: Plant,
    /// R² = 1 − var(prediction error) / var(delay), of predictions one period ahead.
    pub r_squared: f64,
    /// The number of predictions.
    pub samples: usize,
    /// The mean delay, s. If square roots were fitted, it is the mean square root of the delay.
    pub mean_delay: f64,
    /// The mean backlog. If square roots were fitted, it is the mean square root of the backlog.
    pub mean_backlog: f64,
}

/// The reason why a trace gives no model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IdentifyError {
    /// The order is out of range.
    #[error("order {0}; 1 to {MAX_ORDER}")]
    Order(usize),
    /// The trace is too short for the order.
    #[error(
        "{found} samples with their {order} predecessors; order {order} needs {needed}; record a \
         longer trace"
    )]
    TooShort {
        /// The number of samples found.
        found: usize,
        /// The number of samples needed.
        needed: usize,
        /// The order.
        order: usize,
    },
    /// The samples vary too little for a model.
    #[error(
        "delay or backlog don't vary enough to identify a model; vary the load while you record"
    )]
    Flat,
}

/// Fits a model of this order.
///
/// # Errors
/// [`IdentifyError`].
pub fn identify(
    segments: &[Segment],
    order: usize,
    transform: Transform,
) -> Result<Fit, IdentifyError> {
    if !(1..=MAX_ORDER).contains(&order) {
        return Err(IdentifyError::Order(order));
    }
    let pairs = || {
        segments
            .iter()
            .flat_map(|s| s.delays.iter().zip(&s.backlogs))
            .map(|(s, d)| (transform.of(*s), transform.of(*d)))
    };
    let mean_delay = mean(pairs().map(|(s, _)| s)).unwrap_or_default();
    let mean_backlog = mean(pairs().map(|(_, d)| d)).unwrap_or_default();
    let mut rows: Vec<[f64; MAX_COLUMNS]> = Vec::new();
    let mut actual = Vec::new();
    for segment in segments {
        let delay = |k: usize| transform.of(segment.delays[k]) - mean_delay;
        let backlog = |k: usize| transform.of(segment.backlogs[k]) - mean_backlog;
        for k in order..segment.delays.len().min(segment.backlogs.len()) {
            let mut row = [0.0; MAX_COLUMNS];
            row[2 * order] = 1.0;
            for i in 1..=order {
                row[i - 1] = delay(k - i);
                row[order + i - 1] = backlog(k - i);
            }
            rows.push(row);
            actual.push(delay(k));
        }
    }
    let needed = SAMPLES_A_COEFFICIENT * 2 * order;
    if rows.len() < needed {
        return Err(IdentifyError::TooShort {
            found: rows.len(),
            needed,
            order,
        });
    }
    let spread = variance(&actual).unwrap_or_default();
    let x = least_squares(&rows, 2 * order + 1, &actual).ok_or(IdentifyError::Flat)?;
    let (a, b) = x[..2 * order].split_at(order);
    let plant = Plant::new(a.to_vec(), b.to_vec()).ok_or(IdentifyError::Flat)?;
    let errors: Vec<f64> = rows
        .iter()
        .zip(&actual)
        .map(|(row, actual)| actual - plant.next(&row[..order], &row[order..2 * order]))
        .collect();
    Ok(Fit {
        plant,
        r_squared: 1.0 - variance(&errors).unwrap_or_default() / spread,
        samples: rows.len(),
        mean_delay,
        mean_backlog,
    })
}

/// Returns the fit to use, from fits in ascending order. It is the first fit whose R² is within a
/// hundredth of the best. The paper chose the second order this way.
pub fn choose_order(fits: &[Fit]) -> Option<&Fit> {
    let best = fits.iter().map(|f| f.r_squared).fold(f64::MIN, f64::max);
    fits.iter().find(|f| f.r_squared >= best - WORTH)
}
