//! A sender's congestion window. The window is controlled by delay, as in Swift, which keeps queues
//! at receivers small.
//!
//! Each channel, which is a sender, a receiver and a class, has one window. The packets of a
//! channel are sent first come, first served. For each acknowledgement after a round trip of R µs,
//! with a target of 10 µs:
//!
//! ```text
//! R < 10    window += 1 / window, at most 30 packets
//! else      window ·= max(1 − 0.8 · (R − 10)/R, 0.5), at least 1, at most once in a round trip
//! ```
//!
//! A lost packet is detected after 450 µs, which halves the window.

use std::collections::VecDeque;

use super::MICROSECOND;

const FIRST: f64 = 2.0;
const LEAST: f64 = 1.0;
const MOST: f64 = 30.0;
const TARGET: f64 = 10.0 * MICROSECOND as f64;
const DECREASE: f64 = 0.8;
const MOST_DECREASE: f64 = 0.5;
/// The time after which a packet counts as lost, ps.
pub(super) const TIMEOUT: u64 = 450 * MICROSECOND;

/// The sender's side of a channel. Times are ps.
#[derive(Debug, Clone, Default)]
pub(super) struct Channel {
    window: f64,
    in_flight: u32,
    last_decrease: u64,
    last_round_trip: u64,
    /// Calls that have not ended, the oldest first.
    calls: VecDeque<Call>,
    /// The number of the oldest call.
    oldest: u64,
    /// The number of the first call with unsent packets.
    sending: u64,
    /// Packets to send again: the number of the call, and whether the packet is the call's last.
    lost: VecDeque<(u64, bool)>,
}

#[derive(Debug, Clone, Copy)]
struct Call {
    issued: u64,
    unsent: u32,
    unacknowledged: u32,
}

impl Channel {
    pub(super) fn new() -> Self {
        Self {
            window: FIRST,
            ..Self::default()
        }
    }

    /// Adds a call with this number of packets.
    pub(super) fn issue(&mut self, now: u64, packets: u32) {
        self.calls.push_back(Call {
            issued: now,
            unsent: packets,
            unacknowledged: packets,
        });
    }

    /// Returns the next packet to send, if the window has room. A packet is the number of its call,
    /// and whether the packet is the call's last.
    pub(super) fn send(&mut self) -> Option<(u64, bool)> {
        if f64::from(self.in_flight) + 1.0 > self.window {
            return None;
        }
        if let Some(packet) = self.lost.pop_front() {
            self.in_flight += 1;
            return Some(packet);
        }
        let at = usize::try_from(self.sending - self.oldest).ok()?;
        let call = self.calls.get_mut(at)?;
        call.unsent -= 1;
        let packet = (self.sending, call.unsent == 0);
        self.sending += u64::from(packet.1);
        self.in_flight += 1;
        Some(packet)
    }

    /// Handles the acknowledgement of a packet of this call after `round_trip`. Returns the time at
    /// which the call was issued, if the acknowledgement ends the call.
    pub(super) fn acknowledged(&mut self, now: u64, number: u64, round_trip: u64) -> Option<u64> {
        self.in_flight -= 1;
        let took = round_trip as f64;
        if took < TARGET {
            self.window = (self.window + 1.0 / self.window.floor()).min(MOST);
        } else if now - self.last_decrease >= self.last_round_trip {
            self.shrink(
                now,
                (1.0 - DECREASE * (took - TARGET) / took).max(MOST_DECREASE),
            );
        }
        self.last_round_trip = round_trip;
        let at = usize::try_from(number.checked_sub(self.oldest)?).ok()?;
        let call = self.calls.get_mut(at)?;
        call.unacknowledged -= 1;
        let issued = (call.unacknowledged == 0).then_some(call.issued);
        while self
            .calls
            .front()
            .is_some_and(|call| call.unacknowledged == 0)
        {
            self.calls.pop_front();
            self.oldest += 1;
        }
        issued
    }

    /// Handles the loss of a packet that was sent about [`TIMEOUT`] ago.
    pub(super) fn timed_out(&mut self, now: u64, packet: (u64, bool)) {
        self.in_flight -= 1;
        self.lost.push_back(packet);
        if now - self.last_decrease >= self.last_round_trip {
            self.shrink(now, MOST_DECREASE);
        }
    }

    fn shrink(&mut self, now: u64, by: f64) {
        self.window = (self.window * by).max(LEAST);
        self.last_decrease = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = MICROSECOND;

    fn sent(channel: &mut Channel) -> Vec<(u64, bool)> {
        std::iter::from_fn(|| channel.send()).collect()
    }

    #[test]
    fn the_window_opens_by_one_in_a_round_trip_and_closes_by_delay() {
        let mut channel = Channel::new();
        channel.issue(0, 100);
        assert_eq!(sent(&mut channel).len(), 2);
        // 2 + 1/2 + 1/2.
        for _ in 0..2 {
            channel.acknowledged(US, 0, 4 * US);
        }
        assert_eq!(sent(&mut channel).len(), 3);
        // 1 − 0.8 · 10/20 = 0.6, and at most one decrease in a round trip.
        channel.acknowledged(30 * US, 0, 20 * US);
        channel.acknowledged(31 * US, 0, 20 * US);
        assert!((channel.window - 1.8).abs() < 1e-9);
        channel.acknowledged(50 * US, 0, 1_000 * US);
        assert!((channel.window - 1.0).abs() < 1e-9);
        assert_eq!(sent(&mut channel).len(), 1);
        for n in 0..1_000 {
            channel.acknowledged((60 + n) * US, 0, 4 * US);
            channel.issue(0, 1);
            channel.send();
        }
        assert!((channel.window - 30.0).abs() < 1e-9);
    }

    #[test]
    fn calls_end_with_their_last_acknowledgement_and_lost_packets_go_first() {
        let mut channel = Channel::new();
        channel.issue(3, 2);
        channel.issue(4, 1);
        assert_eq!(sent(&mut channel), [(0, false), (0, true)]);
        channel.timed_out(TIMEOUT, (0, false));
        assert_eq!(sent(&mut channel), []);
        assert_eq!(channel.acknowledged(TIMEOUT, 0, US), None);
        assert_eq!(sent(&mut channel), [(0, false), (1, true)]);
        assert_eq!(channel.acknowledged(TIMEOUT, 1, US), Some(4));
        assert_eq!(channel.acknowledged(TIMEOUT, 0, US), Some(3));
        assert!(channel.calls.is_empty());
        assert_eq!((channel.oldest, channel.in_flight), (2, 0));
    }
}
