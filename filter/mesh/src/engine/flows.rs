//! The flows of a fair queue by workflow: the flow of a request, and its weight.
//!
//! Names come from clients and are unbounded. With a hash into a fixed number of flows, two names
//! could share a flow. A client that knows the hash could then find a name that shares a victim's
//! flow. So each name has its own id in a bounded directory that all workers share ([`Directory`]).
//! Names beyond the bound share flow 0 with the requests that name no workflow, and never share the
//! flow of another name. If the policy has workflows, their ids are used
//! ([`crate::workflows::Workflows::identify`]).
//!
//! Without workflows, idle names aren't tracked. Instead, names whose flows have no state are
//! removed from a full directory, at most once in [`RECLAIM`]. A name that returns later starts as
//! a new flow, which is correct for its queue. A client that sends many names can only take the ids
//! that became free in the last minute. Flows with waiting requests or a debt keep their ids.

use std::collections::HashMap;
use std::time::Duration;

use headgate_core::classify::RequestView;
use headgate_core::config::{Flow, MAX_WORKFLOWS, StageConfig};
use headgate_core::host::Host;
use headgate_core::stage::Stage;
use headgate_core::stats;
use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use crate::workflow;
use crate::workflows::OTHER_NAME;
use crate::workflows::names::Directory;

/// The time between two removals from a full directory.
const RECLAIM: Duration = Duration::from_secs(60);

/// The flows by workflow of one stage.
#[derive(Debug)]
pub(crate) struct Flows {
    weights: HashMap<Box<[u8]>, f64>,
    /// The ids of names, or `None` if the policy has workflows, which then assign the ids.
    names: Option<Directory>,
    reclaimed: Option<Instant>,
    /// A buffer that all requests reuse, so that no request allocates.
    name: Vec<u8>,
}

impl Flows {
    /// Creates the flows of `stage`. Returns `None` if its queue has no flows by workflow.
    ///
    /// # Errors
    /// [`HostError`] if the host refuses a metric or a blob.
    pub(crate) fn new(host: &impl Host, stage: &StageConfig) -> Result<Option<Self>, HostError> {
        let Some((Flow::Workflow, _, weights)) = stage.queue.discipline.fair() else {
            return Ok(None);
        };
        let names = match &stage.workflows {
            Some(_) => None,
            None => {
                // The policy's workflows would use the same directory, so names keep their ids if
                // workflows are added.
                let key = format!("headgate/workflows/{}/names", stage.policy);
                let changes = format!("{}.names_changes", stats::prefix(&stage.policy));
                let mut names = Directory::new(host, key, &changes, MAX_WORKFLOWS)?;
                names.sync(host)?;
                Some(names)
            }
        };
        let bytes = |name: &String| name.as_bytes().into();
        Ok(Some(Self {
            weights: weights.iter().map(|(n, w)| (bytes(n), *w)).collect(),
            names,
            reclaimed: None,
            name: Vec::new(),
        }))
    }

    /// Returns the flow and the weight of `request`, or (0, 1) if the policy has workflows. A known
    /// name costs no host call, nor does a new name when the directory of names is full.
    pub(crate) fn find(
        &mut self,
        host: &impl Host,
        now: Instant,
        request: &impl RequestView,
    ) -> (u16, f64) {
        let Some(names) = &mut self.names else {
            return (0, 1.0);
        };
        let named = workflow::name(request, &mut self.name);
        let id = named.then(|| names.id(host, now, &self.name)).flatten();
        match id {
            Some(id) => (id, self.weight(Some(&self.name))),
            None => (0, self.weight(None)),
        }
    }

    /// Returns the weight of the workflow `name`. `name` is `None` for requests without an id.
    pub(crate) fn weight(&self, name: Option<&[u8]>) -> f64 {
        let name = name.unwrap_or(OTHER_NAME.as_bytes());
        self.weights.get(name).copied().unwrap_or(1.0)
    }

    /// Updates the names from the other workers' changes, and frees ids of a full directory.
    ///
    /// # Errors
    /// [`HostError`]. The next call of this function then continues.
    pub(crate) fn tick(
        &mut self,
        host: &impl Host,
        now: Instant,
        stage: &mut Stage,
    ) -> Result<(), HostError> {
        let Some(names) = &mut self.names else {
            return Ok(());
        };
        names.sync(host)?;
        let due = self.reclaimed.is_none_or(|at| now.since(at) >= RECLAIM);
        if names.is_full() && due {
            self.reclaimed = Some(now);
            let ids: Vec<u16> = names.iter().map(|(id, _)| id).collect();
            let idle = stage.idle_flows(host, ids)?;
            names.free(host, &idle)?;
        }
        for id in names.take_freed() {
            stage.forget_flow(id);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::memory::{MemoryHost, MemoryRequest};
    use headgate_core::config::FilterConfig;
    use headgate_core::decision::PolicyId;
    use headgate_core::stats::StageStats;
    use headgate_core::workers::Membership;
    use headgate_strategies::host::Shared;

    const T: Instant = Instant::from_nanos(1_000_000_000_000);

    fn named(workflow: impl AsRef<[u8]>) -> MemoryRequest {
        MemoryRequest::default().with(workflow::HEADER, workflow)
    }

    fn config() -> StageConfig {
        let json = br#"{"stages":[{"policy":"ns/p","parallelism":1,
            "queue":{"discipline":{"type":"DRR","by":"Workflow","quantum_us":10000,
                                   "weights":{"big":3,"_other":0.5}},
                     "max_length":1000,"timeout_us":1000000},
            "strategy":{"type":"MaxQueueLength"},"types":[{"name":"default"}]}]}"#;
        FilterConfig::from_json(json).unwrap().stages.remove(0)
    }

    fn workers(host: &MemoryHost) -> [Flows; 2] {
        [(); 2].map(|()| Flows::new(host, &config()).unwrap().unwrap())
    }

    fn stage(host: &MemoryHost) -> Stage {
        let membership = Membership::join(T, 1, host).unwrap();
        let stats = StageStats::new(host, &config()).unwrap();
        Stage::new(PolicyId(0), config(), stats, &membership, 1, host).unwrap()
    }

    #[test]
    fn a_workflow_has_its_weight() {
        let host = MemoryHost::new();
        let [mut flows, _] = workers(&host);
        let (big, weight) = flows.find(&host, T, &named(b"big"));
        assert!(big > 0 && weight == 3.0);
        let (small, weight) = flows.find(&host, T, &named(b"small"));
        assert!(small > 0 && small != big && weight == 1.0);
        assert_eq!(flows.find(&host, T, &named(b"")), (0, 0.5));
        assert_eq!(flows.find(&host, T, &named([b'a'; 129])), (0, 0.5));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        /// No name ever gets the flow of another name, for any names sent to any worker.
        #[test]
        fn no_name_shares_the_flow_of_another(
            chosen in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 1..140), 0_usize..2),
                1..300,
            ),
            flood in 0_usize..2_000,
        ) {
            let host = MemoryHost::new();
            let mut workers = workers(&host);
            let mut names: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
            let flood = (0..flood).map(|n| (format!("flood-{n}").into_bytes(), n % 2));
            for (name, worker) in chosen
                .iter()
                .cloned()
                .chain(flood)
                .chain(chosen.iter().cloned())
            {
                let (flow, _) = workers[worker].find(&host, T, &named(&name));
                prop_assert!(flow <= MAX_WORKFLOWS);
                if flow > 0 {
                    let name: Vec<u8> = workflow::Decoded(name.trim_ascii()).collect();
                    prop_assert_eq!(names.entry(flow).or_insert_with(|| name.clone()), &name);
                }
            }
        }
    }

    #[test]
    fn a_full_directory_drops_entries_without_state() {
        let host = MemoryHost::new();
        let [mut flows, mut other] = workers(&host);
        let mut stage = stage(&host);
        let debtor = flows.find(&host, T, &named(b"debtor")).0;
        for n in 0..2_000 {
            flows.find(&host, T, &named(format!("flood-{n}").as_bytes()));
        }
        assert_eq!(flows.find(&host, T, &named(b"late")).0, 0);
        let name = format!("headgate.policy.ns/p.workflow.{debtor}.drr_finish");
        let finish = host.number(&name).unwrap();
        host.set(finish, 1 << 30).unwrap();
        flows.tick(&host, T, &mut stage).unwrap();
        assert!(flows.find(&host, T, &named(b"late")).0 > 0);
        other.tick(&host, T, &mut stage).unwrap();
        assert_eq!(other.find(&host, T, &named(b"debtor")).0, debtor);
        // The directory isn't cleared again before [`RECLAIM`] is over, regardless of the number of
        // new names.
        for n in 0..2_000 {
            flows.find(&host, T, &named(format!("again-{n}").as_bytes()));
        }
        flows
            .tick(&host, T + Duration::from_secs(59), &mut stage)
            .unwrap();
        assert_eq!(flows.find(&host, T, &named(b"later")).0, 0);
        flows
            .tick(&host, T + Duration::from_secs(60), &mut stage)
            .unwrap();
        assert!(flows.find(&host, T, &named(b"later")).0 > 0);
    }
}
