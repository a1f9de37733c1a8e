//! The stage in front of the processes of a service, and the classification of requests in it.

use headgate_core::classify::Classifier;
use headgate_core::config::{
    ConfigError, DEFAULT_TYPE, Discipline, HeaderMatch, MAX_QUEUE_LENGTH, Match, Mode, QueueConfig,
    StageConfig, StrategyConfig, StringMatchKind, TypeConfig, WorkflowSource, WorkflowsConfig,
};
use headgate_mesh::workflow;
use headgate_strategies::request::TypeId;

use super::clocks::Clocks;
use super::file::Plan;
use super::graph::{Graph, Service};
use crate::workload::request::{Classification, SampleRequest, place};

/// The longest queue wait of requests without a deadline, µs: the filter's longest, beyond any run.
const FOREVER_US: u64 = 3_600_000_000;

/// The setup of the processes of a mesh.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Setup {
    /// Policies by service. The processes of a service without a policy only have slots and a
    /// queue.
    pub policies: Vec<Option<Policy>>,
    /// Whether requests carry deadlines. If not, only clients use deadlines.
    pub deadlines: bool,
    /// The processes' clocks.
    pub clocks: Clocks,
}

impl Setup {
    /// Returns a setup in which every process has a queue of this discipline and these workflows,
    /// and only refuses requests because of a rate or a deadline. With workflows, requests carry
    /// deadlines. Each workflow is a separate type, so that its processing times are estimated
    /// separately.
    pub fn alike(
        graph: &Graph,
        discipline: &Discipline,
        workflows: Option<&WorkflowsConfig>,
    ) -> Self {
        let policy = |service| Some(Policy::of_workflows(graph, service, discipline, workflows));
        Self {
            policies: graph.services.iter().map(policy).collect(),
            deadlines: workflows.is_some(),
            clocks: Clocks::default(),
        }
    }

    pub(super) fn policy(&self, graph: &Graph, service: usize) -> Policy {
        let policy = self.policies.get(service).cloned().flatten();
        policy.unwrap_or_else(|| {
            Policy::of_workflows(graph, &graph.services[service], &Discipline::Fifo, None)
        })
    }
}

/// A stage, and the classification of requests in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    pub(super) stage: StageConfig,
    /// Classifications by task, then by workflow. A request with `None` bypasses the stage.
    pub(super) places: Vec<Vec<Option<Classification>>>,
}

impl Policy {
    /// Returns the policy with `stage` in front of a service of `plan`. The policy's own rules
    /// classify requests, by the sample requests of the service's operations. The number of slots
    /// is that of the mesh, unless the policy finds P automatically.
    ///
    /// # Errors
    /// [`ConfigError`] if the rules are invalid.
    pub fn new(mut stage: StageConfig, plan: &Plan, service: usize) -> Result<Self, ConfigError> {
        let classifier = Classifier::new(&stage)?;
        let place = |(task, request): (usize, &SampleRequest), name: &str| {
            let mut request = request.clone();
            request
                .headers
                .push((workflow::HEADER.to_owned(), name.to_owned()));
            let is_here = plan.graph.tasks[task].service == service;
            is_here.then(|| place(&classifier, &request)).flatten()
        };
        let names: Vec<&str> = plan
            .graph
            .workflows
            .iter()
            .map(|w| w.name.as_str())
            .collect();
        let places = plan.requests.iter().enumerate();
        let places = places.map(|task| names.iter().map(|name| place(task, name)).collect());
        let places = places.collect();
        if stage.auto_parallelism.is_none() {
            stage.parallelism = plan.graph.services[service].slots;
        }
        stage.mode = Mode::Enforce;
        if let Some(workflows) = &mut stage.workflows {
            workflows.identify = by_header();
            workflows.edge = false;
            workflows.peers.clear();
        }
        Ok(Self { stage, places })
    }

    fn of_workflows(
        graph: &Graph,
        service: &Service,
        discipline: &Discipline,
        workflows: Option<&WorkflowsConfig>,
    ) -> Self {
        let kind = |name: &str| TypeConfig {
            name: name.to_owned(),
            matches: match name {
                DEFAULT_TYPE => Vec::new(),
                _ => vec![by_workflow(name)],
            },
            ..TypeConfig::default()
        };
        let types = graph.workflows.iter().map(|w| w.name.as_str());
        let stage = StageConfig {
            policy: format!("default/{}", service.name),
            generation: 1,
            parallelism: service.slots,
            queue: QueueConfig {
                discipline: discipline.clone(),
                max_length: MAX_QUEUE_LENGTH,
                timeout_us: FOREVER_US,
                ..QueueConfig::default()
            },
            strategy: StrategyConfig::MaxQueueLength,
            types: types.chain([DEFAULT_TYPE]).map(kind).collect(),
            workflows: workflows.cloned(),
            ..StageConfig::default()
        };
        let kinds = (0..).take(graph.workflows.len()).map(TypeId);
        let places: Vec<Option<Classification>> = kinds
            .map(|kind| Some(Classification::of(kind, &stage)))
            .collect();
        Self {
            stage,
            places: vec![places; graph.tasks.len()],
        }
    }
}

fn by_workflow(name: &str) -> Match {
    Match {
        headers: vec![HeaderMatch {
            kind: StringMatchKind::Exact,
            name: workflow::HEADER.to_owned(),
            value: name.to_owned(),
        }],
        ..Match::default()
    }
}

/// Returns a header as the source of workflows. The mesh names a request's workflow in this header,
/// whatever source the policy uses.
fn by_header() -> Vec<WorkflowSource> {
    vec![WorkflowSource::Header {
        name: workflow::HEADER.to_owned(),
    }]
}
