//! Helping the underserved gives second chances to types that are accepted less than the others
//! (Bouncer §4.2, Alg. 3).
//!
//! Let AR be the type's acceptance ratio over the sliding window, and AAR the average of that ratio
//! over all types that received anything. A rejection is overridden with probability p if AR < AAR:
//!
//! ```text
//! x = AAR − AR        p = α · x / (1 + |x|)        so p ≤ α / 2
//! ```
//!
//! The listing of Alg. 3 is a figure that the paper's text lacks. The prose gives the sigmoid, and
//! says that its purpose is to give less help than (AAR − AR) / AAR would. It gives p_max = α / 2
//! (Table 5), so x ≤ 1. It leaves open whether x is the difference or relative to AAR, and how AAR
//! averages. Tables 3 and 5 decide. The numbers are rejections of slow / medium slow in percent, at
//! 1.5× load with α = 0.1, 0.5, 1.0 and at 1.3× load with α = 1.0, simulated as in §5.3:
//!
//! ```text
//!                                       α = 0.1        α = 0.5        α = 1.0        1.3×, α = 1.0
//! the paper                          94.74 /  7.07  82.38 / 14.19  71.15 / 20.41  67.08 / 4.06
//! AAR − AR                           94.72 /  8.37  81.70 / 15.51  68.52 / 23.05  65.34 / 6.12
//! AAR − AR, AAR with default as 0    95.38 /  7.98  84.37 / 14.09  73.95 / 19.88  69.64 / 3.66
//! AAR − AR, AAR = all acc. / all rec. 94.32 / 8.55  79.87 / 16.60  65.75 / 24.41  62.88 / 7.37
//! (AAR − AR) / AAR                   94.18 /  8.67  78.98 / 16.99  64.72 / 25.10  62.78 / 7.46
//! ```
//!
//! The variant that counts the `default` type, which receives nothing there, with ratio 0 comes
//! closest. But in a policy with many types, most of them idle, that would prevent all help. So x
//! is the difference, with the average over the types that received something.

use crate::request::TypeId;
use crate::window::Window;

/// Starvation avoidance that overrides rejections of types that are accepted less than the average.
#[derive(Debug, Clone, Copy)]
pub struct HelpingTheUnderserved {
    alpha: f64,
}

impl HelpingTheUnderserved {
    /// Creates the strategy. `alpha` is α, 0 < α ≤ 1.
    pub const fn new(alpha: f64) -> Self {
        Self { alpha }
    }

    /// Returns the probability with which a rejection is overridden.
    pub(super) fn help(&self, kind: TypeId, window: &Window) -> f64 {
        let average = window.average_acceptance_ratio();
        let (Some(ar), Some(aar)) = (window.acceptance_ratio(kind), average) else {
            return 0.0;
        };
        if ar >= aar {
            return 0.0;
        }
        let x = aar - ar;
        self.alpha * x / (1.0 + x.abs())
    }
}
