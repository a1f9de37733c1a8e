//! Headgate's stage in front of the modelled services.
//!
//! A stage of SEDA has an admission controller and a queue of its own. Here the service has the queues
//! ([`crate::backend::Staged`]) and Headgate's stage has so many slots that it never holds a request: what
//! it does is SEDA's admission controllers, one for each type (per-stage control) or one for all
//! (single-stage control).

use headgate_core::config::{
    ClassConfig, ControlScope, DEFAULT_TYPE, DegradationConfig, Discipline, ErrorsConfig,
    HeaderMatch, MAX_QUEUE_LENGTH, Match, Measure, Mode, PathMatch, QueueConfig, QueueMode,
    ResponseTimeControllerConfig, ServiceTimesConfig, StageConfig, StrategyConfig, StringMatchKind,
    TypeConfig,
};

/// More than there are users in any experiment.
const SLOTS: u32 = 4_096;
const SECOND_US: u64 = 1_000_000;

/// Admission control.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Control {
    /// None: everybody is let in.
    None,
    /// A controller for each request type; target in s.
    PerStage(u64),
    /// One controller for all request types; target in s.
    SingleStage(u64),
    /// Quality first; target in s, and whether requests are refused when that doesn't suffice.
    Degradation(u64, bool),
}

/// A stage for these request types, with so many classes of users.
pub(super) fn stage(types: &[&str], classes: usize, control: Control) -> StageConfig {
    let kinds = types.iter().copied().chain([DEFAULT_TYPE]).map(kind);
    let kinds: Vec<TypeConfig> = kinds.collect();
    StageConfig {
        policy: "default/simulated".to_owned(),
        generation: 1,
        routes: Vec::new(),
        mode: Mode::Enforce,
        parallelism: SLOTS,
        auto_parallelism: None,
        queue: QueueConfig {
            mode: QueueMode::Hold,
            discipline: Discipline::Fifo,
            max_length: MAX_QUEUE_LENGTH,
            timeout_us: 3_600 * SECOND_US,
        },
        measure: Measure::LastByte,
        errors: ErrorsConfig::default(),
        service_times: ServiceTimesConfig::default(),
        strategy: strategy(kinds.len(), classes, control),
        starvation_avoidance: None,
        types: kinds,
        classes: (0..classes)
            .filter(|_| classes > 1)
            .map(|n| class(n, classes))
            .collect(),
        workflows: None,
        excluded: Vec::new(),
    }
}

fn strategy(types: usize, classes: usize, control: Control) -> StrategyConfig {
    let (target, scope, degradation) = match control {
        Control::None => return StrategyConfig::MaxQueueLength,
        Control::PerStage(target) => (target, ControlScope::Type, None),
        Control::SingleStage(target) => (target, ControlScope::Policy, None),
        Control::Degradation(target, admission) => {
            let degradation = DegradationConfig {
                min_quality: super::service::MIN_QUALITY,
                decrease: 1.2,
                increase: 0.02,
                admission,
            };
            (target, ControlScope::Type, Some(degradation))
        }
    };
    let controllers = match scope {
        ControlScope::Type => types,
        ControlScope::Policy => 1,
    };
    // Figure 4 has all but the target.
    StrategyConfig::ResponseTimeController(ResponseTimeControllerConfig {
        degradation,
        ..ResponseTimeControllerConfig::figure_4(
            scope,
            vec![vec![target * SECOND_US; classes.max(1)]; controllers],
        )
    })
}

fn kind(name: &str) -> TypeConfig {
    let name = name.replace(' ', "-");
    TypeConfig {
        matches: match name.as_str() {
            DEFAULT_TYPE => Vec::new(),
            _ => vec![Match {
                path: Some(PathMatch::PathPrefix(format!("/{name}"))),
                ..Match::default()
            }],
        },
        slo: Vec::new(),
        value: 1.0,
        name,
    }
}

fn class(number: usize, classes: usize) -> ClassConfig {
    let name = format!("class{number}");
    let header = HeaderMatch {
        kind: StringMatchKind::Exact,
        name: "x-class".to_owned(),
        value: name.clone(),
    };
    ClassConfig {
        name,
        matches: match number + 1 == classes {
            true => Vec::new(),
            false => vec![Match {
                headers: vec![header],
                ..Match::default()
            }],
        },
        value: 1.0,
    }
}
