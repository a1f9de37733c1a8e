//! A bound on the held requests that are resumed or refused in one turn of Envoy's event loop.
//!
//! Envoy resumes or refuses the requests when the callback that requested this returns, one after
//! the other. A refusal runs the response's filters, including this one, and the return of that
//! callback executes the next refusal inside the first. So refusing n requests takes n nested sets
//! of C++ frames (proxy-wasm-cpp-host issue 326). A resumed request also nests if it ends at once,
//! as without a healthy endpoint, because its end frees the slot for the next request. A queue of
//! thousands that expires after a pause of the process would overflow the worker's stack.
//!
//! A refusal also stops the stream of the callback that requests it. Proxy-wasm treats any local
//! reply as a reply to that stream, and holds the current part of its response permanently. So the
//! callbacks of streams don't refuse other requests.
//!
//! So the number of actions in a turn is bounded. Further actions wait for the next turn. The
//! worker wakes itself for that turn, because Envoy delivers the wake-up of a shared queue from its
//! event loop, with the stack unwound.
//!
//! The callback in which a request starts to wait neither refuses nor resumes any. A request that
//! it resumes and that ends at once may free a slot for the waiting one, which would be resumed
//! before its callback has paused it. Envoy would then pause it permanently: the backend would get
//! its headers and never its body.

use std::collections::VecDeque;

/// The largest number of resumed and refused requests in one turn.
const MOST: u32 = 32;

/// The actions of a turn, and the actions that wait for the next turn. `A` is the action for one
/// request.
#[derive(Debug)]
pub(crate) struct Turn<A> {
    done: u32,
    /// Whether a wake-up for the next turn has been sent.
    asked: bool,
    waiting: VecDeque<A>,
    /// The actions that only the next turn may execute.
    postponed: Vec<A>,
}

impl<A> Default for Turn<A> {
    fn default() -> Self {
        Self {
            done: 0,
            asked: false,
            waiting: VecDeque::new(),
            postponed: Vec::new(),
        }
    }
}

impl<A> Turn<A> {
    /// Starts a turn. Envoy's event loop must have called the callback, with the stack unwound.
    pub(crate) fn begin(&mut self) {
        self.done = 0;
        self.asked = false;
        self.waiting.extend(self.postponed.drain(..));
    }

    /// Postpones an action to the next turn.
    pub(crate) fn postpone(&mut self, action: A) {
        self.postponed.push(action);
    }

    /// Adds `actions` to the actions that wait.
    pub(crate) fn add(&mut self, actions: &mut Vec<A>) {
        self.waiting.extend(actions.drain(..));
    }

    /// Returns the next action of this turn, or `None` if no action waits or the turn has reached
    /// its bound.
    pub(crate) fn next(&mut self) -> Option<A> {
        if self.done == MOST {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.done += 1;
        Some(next)
    }

    /// Drops the actions for which `of` is true, because their stream has ended. Envoy keeps the
    /// stream's context for a moment, but no longer allows calls for it.
    pub(crate) fn forget(&mut self, of: impl Fn(&A) -> bool) {
        if self.is_pending() {
            self.waiting.retain(|action| !of(action));
            self.postponed.retain(|action| !of(action));
        }
    }

    /// Whether the caller must send a wake-up for the next turn. Returns true at most once a turn,
    /// and from half of the bound on, so that a worker with many actions hardly ever waits for the
    /// wake-up.
    pub(crate) fn needs_wake(&mut self) -> bool {
        if self.asked || (self.done < MOST / 2 && self.postponed.is_empty()) {
            return false;
        }
        self.asked = true;
        true
    }

    /// Whether actions wait for the next turn.
    pub(crate) fn is_pending(&self) -> bool {
        !(self.waiting.is_empty() && self.postponed.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Executes the actions of a turn. As in Envoy, each action ends in a callback that may cause
    /// further actions.
    fn nest(turn: &mut Turn<u32>, caused: &mut u32, depth: u32, done: &mut Vec<u32>) -> u32 {
        let mut deepest = depth;
        while let Some(stream) = turn.next() {
            done.push(stream);
            if *caused > 0 {
                *caused -= 1;
                turn.add(&mut vec![1_000_000 - *caused]);
            }
            deepest = deepest.max(nest(turn, caused, depth + 1, done));
        }
        deepest
    }

    #[test]
    fn a_stream_that_is_gone_is_left_alone() {
        let mut turn = Turn::default();
        turn.add(&mut vec![1, 2, 3]);
        turn.forget(|stream| *stream == 2);
        assert_eq!(turn.next(), Some(1));
        assert_eq!(turn.next(), Some(3));
        assert_eq!(turn.next(), None);
    }

    #[test]
    fn a_postponed_stream_is_resumed_in_the_next_turn() {
        let mut turn = Turn::default();
        assert!(!turn.needs_wake());
        turn.add(&mut vec![1, 2]);
        let first = turn.next().unwrap();
        turn.postpone(first);
        assert_eq!(turn.next(), Some(2));
        assert_eq!(turn.next(), None);
        assert!(turn.is_pending() && turn.needs_wake());
        turn.begin();
        assert_eq!(turn.next(), Some(1));
        assert!(!turn.is_pending());
        turn.postpone(3);
        turn.forget(|stream| *stream == 3);
        assert!(!turn.is_pending());
    }

    #[test]
    fn twenty_thousand_at_once_nest_no_deeper_than_one_turn() {
        let mut turn = Turn::default();
        turn.add(&mut (0..20_000).collect());
        let (mut done, mut caused, mut turns) = (Vec::new(), 5_000, 0);
        loop {
            turns += 1;
            assert!(nest(&mut turn, &mut caused, 0, &mut done) <= MOST);
            if !turn.needs_wake() {
                break;
            }
            assert!(!turn.needs_wake(), "one wake-up a turn");
            turn.begin();
        }
        assert_eq!(done.len(), 25_000);
        assert_eq!(turns, 25_000_u32.div_ceil(MOST));
        assert!(done[..20_000].is_sorted(), "in order");
        assert!(!turn.is_pending());
    }
}
