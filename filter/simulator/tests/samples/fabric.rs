//! The setups of experiments on the fabric.

use std::time::Duration;

use crate::fabric::{Pattern, Setup};

pub(crate) fn all_to_all() -> Setup {
    Setup {
        hosts: 33,
        pattern: Pattern::AllToAll {
            burst: 1.4,
            calls: 4,
            idle: 0.75,
        },
        call_bytes: 32_768,
        weights: vec![8, 4, 1],
        mixes: vec![vec![60.0, 30.0, 10.0]],
        buffer_bytes: 524_288,
        targets_us: vec![14, 25],
        percentile: 99.9,
        interval: Duration::from_millis(10),
    }
}

pub(crate) fn incast() -> Setup {
    Setup {
        hosts: 3,
        pattern: Pattern::Incast { load: 1.0 },
        call_bytes: 32_768,
        weights: vec![4, 1],
        mixes: vec![vec![10.0, 90.0], vec![70.0, 30.0]],
        buffer_bytes: 1_048_576,
        targets_us: vec![30],
        percentile: 98.5,
        interval: Duration::from_millis(50),
    }
}
