//! A backend whose speed or capacity changes while it runs.
//!
//! ```text
//! τ(t) = ∫ v dt        the backend's own time, in which nothing changes
//! ```
//!
//! v is the speed. A pause of the garbage collector is v = 0 for 100 ms. A noisy neighbour or a
//! slow disk is v = ½ for some seconds. With a leak, v decreases over minutes. With a cold cache, v
//! increases.

use headgate_simulator::backend::Backend;
use headgate_simulator::source::Request;

use super::network::Network;

/// A speed, which applies from a certain time until the next piece.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// The time, ns.
    from: f64,
    /// The backend's own time at `from`, ns.
    own: f64,
    speed: f64,
}

/// A [`Network`] whose speed or capacity changes while it runs.
#[derive(Debug)]
pub(crate) struct Paced {
    network: Network,
    pieces: Vec<Piece>,
    /// The times of capacity changes, ns, and their factors. The next change is last.
    changes: Vec<(u64, f64)>,
}

impl Paced {
    /// Returns a backend with these changes of speed: the time, ns, ascending, and the speed from
    /// then on. Before the first change, the speed is 1. Changes of capacity have the same form.
    pub(crate) fn new(network: Network, speeds: &[(u64, f64)], changes: &[(u64, f64)]) -> Self {
        let mut pieces = vec![Piece {
            from: 0.0,
            own: 0.0,
            speed: 1.0,
        }];
        for &(from, speed) in speeds {
            let from = from as f64;
            if let Some(last) = pieces.last().copied() {
                pieces.push(Piece {
                    from,
                    own: last.own + (from - last.from) * last.speed,
                    // With a speed above 0, every own time corresponds to a time.
                    speed: speed.max(1e-9),
                });
            }
        }
        Self {
            network,
            pieces,
            changes: changes.iter().rev().copied().collect(),
        }
    }

    fn own(&self, now: u64) -> f64 {
        let now = now as f64;
        let at = self.pieces.partition_point(|piece| piece.from <= now);
        let piece = self.pieces[at.saturating_sub(1)];
        piece.own + (now - piece.from) * piece.speed
    }

    fn change(&mut self, now: u64) {
        while let Some(&(at, factor)) = self.changes.last()
            && at <= now
        {
            self.changes.pop();
            let own = self.own(at);
            self.network.scale(own, factor);
        }
    }
}

impl Backend for Paced {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.change(now);
        let own = self.own(now);
        self.network.start(own, job, request.processing as f64);
    }

    fn next_end(&self) -> u64 {
        let own = self.network.next();
        if own.is_infinite() {
            return u64::MAX;
        }
        let at = self.pieces.partition_point(|piece| piece.own <= own);
        let piece = self.pieces[at.saturating_sub(1)];
        let end = (piece.from + (own - piece.own) / piece.speed).ceil() as u64;
        // A change of capacity is an event, too, in which no job ends.
        self.changes.last().map_or(end, |&(at, _)| end.min(at))
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        self.change(now);
        // Up to one ns of rounding is tolerated.
        while self.network.next() <= self.own(now) + 1.0 {
            if let Some(job) = self.network.advance() {
                return Some(job);
            }
        }
        None
    }

    fn busy(&self) -> u32 {
        self.network.busy()
    }

    fn servers(&self) -> u32 {
        self.network.servers()
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::Resource;
    use super::*;

    fn ends(mut backend: Paced, jobs: u32, work: u64) -> Vec<u64> {
        for job in 0..jobs {
            backend.take(0, job, &Request::new(0, 0, work));
        }
        let mut ends = Vec::new();
        while backend.next_end() < u64::MAX {
            let now = backend.next_end();
            ends.extend(backend.end(now).map(|_| now));
        }
        ends
    }

    #[test]
    fn a_pause_delays_all_that_is_at_work() {
        let servers = Network::new(1, &[(1.0, Resource::Sleep)], 1);
        let paced = Paced::new(servers, &[(1_500, 0.0), (3_500, 1.0), (4_000, 0.5)], &[]);
        assert_eq!(ends(paced, 3, 1_000), [1_000, 4_000, 6_000]);
    }

    #[test]
    fn capacity_changes_at_its_time() {
        let servers = Network::new(2, &[(1.0, Resource::Sleep)], 2);
        let paced = Paced::new(servers, &[], &[(1_500, 0.5), (3_500, 2.0)]);
        assert_eq!(
            ends(paced, 8, 1_000),
            [1_000, 1_000, 2_000, 2_000, 3_000, 4_000, 4_500, 5_000]
        );
    }
}
