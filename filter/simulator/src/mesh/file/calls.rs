//! The operations of services as tasks, whose calls must not form a cycle.

use super::{CallEntry, RouteName, ServiceEntry, StepEntry};
use crate::mesh::{Calls, Count, Route, Step, Task};
use crate::workload::file::DistributionName;
use crate::workload::file::problem::At;

const MOST_OPERATIONS: usize = 100;
const MOST_CALLS: i64 = 10_000;
/// The maximum number of calls that one request may cause, over all hops.
const MOST_BELOW: u64 = 100_000;

/// The service, the name and the path in the file of a task's operation.
#[derive(Debug)]
struct Operation<'p> {
    service: String,
    name: String,
    at: At<'p>,
}

/// A task for each operation, in the order of the file.
#[derive(Debug)]
pub(super) struct Tasks<'p> {
    pub(super) tasks: Vec<Task>,
    operations: Vec<Operation<'p>>,
}

impl<'p> Tasks<'p> {
    /// Returns the tasks of these services, and records problems.
    pub(super) fn of(services: &[ServiceEntry], at: &At<'p>) -> Self {
        let mut operations: Vec<Operation<'p>> = Vec::new();
        for (s, service) in services.iter().enumerate() {
            let at = at.item(s).field("operations");
            if !(1..=MOST_OPERATIONS).contains(&service.operations.len()) {
                let right = format!(
                    "1 to {MOST_OPERATIONS}, such as [{{steps: [{{compute: \
                     {{distribution: Exponential, mean: 20ms}}}}]}}]"
                );
                at.note(format!("{} operations", service.operations.len()), right);
            }
            for (o, operation) in service.operations.iter().enumerate() {
                let here = at.item(o);
                let mut before = operations.iter().filter(|b| b.service == service.name);
                if before.any(|b| b.name == operation.name) {
                    let found = format!("{:?} appears twice", operation.name);
                    here.field("name").note(found, "names are unique");
                }
                operations.push(Operation {
                    service: service.name.clone(),
                    name: operation.name.clone(),
                    at: here,
                });
            }
        }
        let mut this = Self {
            tasks: Vec::new(),
            operations,
        };
        for (s, service) in services.iter().enumerate() {
            for operation in &service.operations {
                let at = this.operations[this.tasks.len()].at.field("steps");
                if operation.steps.is_empty() {
                    let right = "such as [{compute: {distribution: Constant, mean: 1ms}}, \
                                 {call: {service: stock}}]";
                    at.note("none", right);
                }
                let steps = operation.steps.iter().enumerate();
                let steps = steps.filter_map(|(i, step)| this.step(&at.item(i), step, services));
                let steps = steps.collect();
                this.tasks.push(Task { service: s, steps });
            }
        }
        this.refuse_floods();
        this
    }

    fn step(&self, at: &At<'_>, step: &StepEntry, services: &[ServiceEntry]) -> Option<Step> {
        let compute = at.field("compute");
        match (&step.compute, &step.call) {
            (Some(time), None) if time.distribution == DistributionName::Recorded => {
                compute.refuse("Recorded", "another distribution; a mesh has no recording")
            }
            (Some(time), None) => time.check(&compute).map(Step::Compute),
            (None, Some(call)) => {
                let calls = self.calls(&at.field("call"), call, services);
                calls.map(Step::Call)
            }
            (compute, _) => {
                let found = match compute {
                    Some(_) => "compute and call",
                    None => "neither compute nor call",
                };
                at.refuse(found, "one of the two in each step")
            }
        }
    }

    /// Returns the task of the operation named by the fields `service` and `operation` at `at`.
    pub(super) fn find(&self, at: &At<'_>, service: &str, operation: &str) -> Option<usize> {
        let of_service: Vec<usize> = (0..self.operations.len())
            .filter(|&i| self.operations[i].service == service)
            .collect();
        if of_service.is_empty() {
            let mut known: Vec<&str> = self.operations.iter().map(|o| o.service.as_str()).collect();
            known.dedup();
            let right = format!("one of {}", known.join(", "));
            return at
                .field("service")
                .refuse(format!("{service:?} is not a service"), right);
        }
        if let ([only], "") = (&of_service[..], operation) {
            return Some(*only);
        }
        let name = |i: usize| self.operations[i].name.as_str();
        let found = of_service.iter().find(|&&i| name(i) == operation);
        found.copied().or_else(|| {
            let names: Vec<&str> = of_service.iter().map(|&i| name(i)).collect();
            let found = match operation {
                "" => format!("missing, and {service} has several operations"),
                name => format!("{name:?} is not an operation of {service}"),
            };
            let right = format!("one of {}", names.join(", "));
            at.field("operation").refuse(found, right)
        })
    }

    fn calls(&self, at: &At<'_>, entry: &CallEntry, services: &[ServiceEntry]) -> Option<Calls> {
        let task = self.find(at, &entry.service, &entry.operation);
        let count = entry.count.or(Some(1));
        let count = at.field("count").whole(count, MOST_CALLS);
        let of = services.iter().find(|s| s.name == entry.service);
        let processes = of.and_then(|s| s.processes).unwrap_or(1);
        let fixed: Option<u32> = at.field("process").whole(entry.process, processes.max(1));
        let route = match (fixed, entry.route) {
            (Some(process), _) => Route::Fixed(process as usize - 1),
            (None, RouteName::RoundRobin) => Route::RoundRobin,
            (None, RouteName::Each) => Route::Each,
        };
        let at_once = if entry.at_once { count? } else { 1 };
        Some(Calls::several(task?, count?, at_once, route))
    }

    /// Records a problem if a request causes an infinite number of calls, or more than
    /// [`MOST_BELOW`]. Calls may multiply from hop to hop.
    fn refuse_floods(&self) {
        let mut known = vec![None; self.tasks.len()];
        for task in 0..self.tasks.len() {
            match self.calls_below(task, &mut Vec::new(), &mut known) {
                Ok(calls) if calls <= MOST_BELOW => {}
                Ok(calls) => {
                    let at = self.operations[task].at.field("steps");
                    let right = format!("at most {MOST_BELOW}");
                    return at.note(format!("{calls} calls for one request"), right);
                }
                Err(cycle) => {
                    let names: Vec<String> = cycle.iter().map(|&t| self.name(t)).collect();
                    let at = self.operations[cycle[0]].at.field("steps");
                    let right = "no cycle: an operation must not call itself, directly or \
                                 indirectly";
                    return at.note(names.join(" → "), right);
                }
            }
        }
    }

    /// Returns the number of calls that `task` causes. The error is a cycle of tasks. `way` is the
    /// chain of calls to `task`.
    fn calls_below(
        &self,
        task: usize,
        way: &mut Vec<usize>,
        known: &mut [Option<u64>],
    ) -> Result<u64, Vec<usize>> {
        if let Some(calls) = known[task] {
            return Ok(calls);
        }
        let before = way.iter().position(|&t| t == task);
        way.push(task);
        if let Some(begin) = before {
            return Err(way.split_off(begin));
        }
        let mut sum = 0_u64;
        for step in &self.tasks[task].steps {
            let Step::Call(calls) = step else { continue };
            let below = self.calls_below(calls.task, way, known)?;
            if let Count::Fixed(count) = calls.count {
                let one = below.saturating_add(1);
                sum = sum.saturating_add(one.saturating_mul(u64::from(count)));
            }
        }
        way.pop();
        known[task] = Some(sum);
        Ok(sum)
    }

    fn name(&self, task: usize) -> String {
        let operation = &self.operations[task];
        match operation.name.as_str() {
            "" => operation.service.clone(),
            name => format!("{}/{name}", operation.service),
        }
    }
}
