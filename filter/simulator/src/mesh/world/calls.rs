//! Calls between processes: their destinations, and their ends by an answer or because the caller
//! gives up.

use headgate_mesh::workflows::wire::Announcement;
use headgate_strategies::request::Progress;
use headgate_strategies::time::nanos;

use super::{Event, World};
use crate::mesh::graph::{Calls, Route, Step};
use crate::mesh::load::below;
use crate::mesh::seen::Ending;
use crate::mesh::spans::{Caller, Span, SpanId, SpanState};
use crate::simulation::SimulationError;

impl World<'_> {
    /// Makes one of the calls of a step.
    pub(super) fn call(&mut self, at: u32, calls: &Calls) {
        let parent = {
            let span = self.spans.at_mut(at);
            span.left -= 1;
            span.outstanding += 1;
            *span
        };
        let service = self.graph.tasks[calls.task].service;
        let process = self.first[service] + self.route(&parent, service, calls);
        let caller = &mut self.processes[parent.process as usize];
        let (upstream, call) = caller.calls(self.now, &parent, service).unzip();
        let id = self.spans.insert(Span {
            caller: Caller::Span(self.spans.id(at)),
            workflow: parent.workflow,
            task: calls.task as u16,
            process: process as u32,
            called_by: parent.process,
            partition: parent.partition,
            size: parent.size,
            deadline: parent.deadline,
            sent: self.now,
            upstream,
            call,
            ..Span::default()
        });
        self.after_delay(Event::Arrive(id.index));
        if let Some(timeout) = self.graph.network.timeout {
            let event = Event::GiveUp(id.index, id.generation);
            self.events.after(self.now, nanos(timeout), event);
        }
    }

    fn route(&mut self, parent: &Span, service: usize, calls: &Calls) -> usize {
        let of = self.graph.services[service].processes.max(1);
        let caller = &mut self.processes[parent.process as usize];
        match calls.route {
            Route::RoundRobin => caller.turn(service, of),
            Route::Each => parent.left as usize % of,
            Route::Partition => {
                let workflow = &self.graph.workflows[usize::from(parent.workflow)];
                let holder = workflow.partitions.get(parent.partition as usize);
                holder.copied().unwrap_or(0).min(of - 1)
            }
            Route::Block(blocks) => {
                let block = below(blocks.max(1) as usize, &mut caller.dice);
                // The blocks of each partition begin at a different process.
                let begin = parent.partition as usize * 7 + usize::from(parent.workflow) * 3;
                (begin + block) % of
            }
            Route::Fixed(process) => process.min(of - 1),
        }
    }

    /// Sends an answer to the caller.
    pub(super) fn reply(&mut self, at: u32, ending: Ending) {
        let lost = self.graph.network.lost;
        let caller = self.spans.at(at).caller;
        if caller == Caller::Gone {
            self.spans.remove(at);
            return;
        }
        let between = matches!(caller, Caller::Span(_));
        if between && lost > 0.0 && self.network.unit() < lost {
            self.spans.at_mut(at).state = SpanState::Lost;
            return;
        }
        self.spans.at_mut(at).state = SpanState::Answered(ending);
        self.after_delay(Event::Answer(at));
    }

    /// Handles the arrival of an answer at its caller.
    pub(super) fn answered(&mut self, at: u32) -> Result<(), SimulationError> {
        let span = *self.spans.at(at);
        self.spans.remove(at);
        let SpanState::Answered(ending) = span.state else {
            return Ok(());
        };
        match span.caller {
            Caller::Gone => Ok(()),
            Caller::Client(load) => {
                self.close(load, &span, ending);
                Ok(())
            }
            Caller::Span(parent) => {
                self.hear(&span, span.said);
                self.returned(parent, ending == Ending::Served)
            }
        }
    }

    /// Reports the end of a call to the calling process, even if the calling request has ended.
    fn hear(&mut self, call: &Span, said: Option<(Announcement, Progress)>) {
        if let Some(noted) = call.call {
            self.processes[call.called_by as usize].heard(self.now, noted, said);
        }
    }

    /// Handles the timeout of the caller or client that waits for this request.
    pub(super) fn give_up(&mut self, id: SpanId) -> Result<(), SimulationError> {
        let Some(span) = self.spans.get_mut(id) else {
            return Ok(());
        };
        let found = *span;
        span.caller = Caller::Gone;
        if found.state == SpanState::Lost {
            self.spans.remove(id.index);
        }
        match found.caller {
            Caller::Gone => Ok(()),
            Caller::Client(load) => {
                self.close(load, &found, Ending::TimedOut);
                Ok(())
            }
            Caller::Span(parent) => {
                self.hear(&found, None);
                self.returned(parent, false)
            }
        }
    }

    /// Handles the end of a call of a request.
    fn returned(&mut self, parent: SpanId, ok: bool) -> Result<(), SimulationError> {
        let at = parent.index;
        let Some(span) = self.spans.get_mut(parent) else {
            return Ok(());
        };
        if span.state != SpanState::Open {
            // The request has already failed because of another call.
            return Ok(());
        }
        span.outstanding -= 1;
        if !ok {
            return self.end(at, Ending::Failed);
        }
        let (left, outstanding) = (span.left, span.outstanding);
        let steps = &self.graph.tasks[usize::from(span.task)].steps;
        match steps.get(usize::from(span.step)) {
            Some(Step::Call(calls)) if left > 0 => {
                self.call(at, calls);
                Ok(())
            }
            _ if outstanding > 0 => Ok(()),
            _ => {
                self.spans.at_mut(at).step += 1;
                self.step(at)
            }
        }
    }
}
