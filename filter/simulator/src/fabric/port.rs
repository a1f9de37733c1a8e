//! The weighted fair queue in front of a switch's port, with a bounded buffer.
//!
//! ```text
//! F = max(now, F of the class's last packet) + size / (rate · w_class / Σw)        least F first
//! ```
//!
//! The maximum uses the real time, so this is Virtual Clock (L. Zhang, 1990) rather than a weighted
//! fair queue with a virtual time. A class that used the idle capacity of other classes is at a
//! disadvantage when the other classes send again. The simulator of Aequitas works this way, so the
//! paper's numbers are for this queue. All classes share the buffer. Packets that don't fit into
//! the buffer are lost.

use std::collections::VecDeque;

/// The weighted fair queue in front of a switch's port, with a bounded buffer. Times are ps.
#[derive(Debug, Clone)]
pub(super) struct Port<P> {
    ps_per_byte: u64,
    classes: Vec<Class<P>>,
    buffer: u32,
    buffered: u32,
    on_the_wire: Option<P>,
}

#[derive(Debug, Clone)]
struct Class<P> {
    /// Packets with their F and their bytes.
    packets: VecDeque<(u64, u32, P)>,
    /// F of the first packet; `u64::MAX` without packets.
    first: u64,
    /// F of the last packet, sent or not.
    last: u64,
    /// The virtual service time of a byte, ps.
    ps_per_byte: u64,
}

impl<P> Port<P> {
    /// Returns an idle port that sends a byte in `ps_per_byte`, with classes of these weights, all
    /// above 0, and a buffer of `buffer` bytes.
    pub(super) fn new(ps_per_byte: u64, weights: &[u32], buffer: u32) -> Self {
        let sum: u64 = weights.iter().copied().map(u64::from).sum();
        let class = |weight: &u32| Class {
            packets: VecDeque::new(),
            first: u64::MAX,
            last: 0,
            ps_per_byte: ps_per_byte * sum / u64::from((*weight).max(1)),
        };
        Self {
            ps_per_byte,
            classes: weights.iter().map(class).collect(),
            buffer,
            buffered: 0,
            on_the_wire: None,
        }
    }

    /// Queues a packet of `bytes` with its headers at `now`. Returns whether the packet fits into
    /// the buffer. A packet that doesn't fit, or whose class doesn't exist, is lost.
    pub(super) fn enqueue(&mut self, now: u64, class: usize, bytes: u32, packet: P) -> bool {
        let Some(class) = self.classes.get_mut(class) else {
            return false;
        };
        if self.buffered + bytes > self.buffer {
            return false;
        }
        self.buffered += bytes;
        class.last = class.last.max(now) + u64::from(bytes) * class.ps_per_byte;
        class.first = class.first.min(class.last);
        class.packets.push_back((class.last, bytes, packet));
        true
    }

    /// Starts sending the next packet, unless the port is busy. Returns the transmission time.
    /// [`Port::sent`] marks the end.
    pub(super) fn send(&mut self) -> Option<u64> {
        if self.on_the_wire.is_some() {
            return None;
        }
        let class = self.classes.iter_mut().min_by_key(|class| class.first)?;
        let (_, bytes, packet) = class.packets.pop_front()?;
        class.first = class.packets.front().map_or(u64::MAX, |(tag, ..)| *tag);
        self.buffered -= bytes;
        self.on_the_wire = Some(packet);
        Some(u64::from(bytes) * self.ps_per_byte)
    }

    /// Marks the end of a transmission. Returns the packet.
    pub(super) fn sent(&mut self) -> Option<P> {
        self.on_the_wire.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues `packet`, a pair of its class and its bytes.
    fn enqueue(port: &mut Port<(usize, u32)>, now: u64, packet: (usize, u32)) -> bool {
        port.enqueue(now, packet.0, packet.1, packet)
    }

    fn next(port: &mut Port<(usize, u32)>) -> Option<(usize, u32)> {
        port.send()?;
        port.sent()
    }

    #[test]
    fn classes_share_by_weight() {
        let mut port = Port::new(80, &[8, 4, 1], 10_000_000);
        for class in 0..3 {
            assert!((0..1_300).all(|_| enqueue(&mut port, 0, (class, 1_000))));
        }
        let mut sent = [0; 3];
        (0..1_300).for_each(|_| sent[next(&mut port).unwrap().0] += 1);
        assert_eq!(sent, [800, 400, 100]);
    }

    #[test]
    fn a_packet_is_sent_to_its_end() {
        let mut port = Port::new(80, &[4, 1], 10_000);
        assert!(enqueue(&mut port, 0, (1, 1_000)));
        assert_eq!(port.send(), Some(80_000));
        assert!(enqueue(&mut port, 1, (0, 500)));
        assert_eq!(port.send(), None);
        assert_eq!(port.sent(), Some((1, 1_000)));
        assert_eq!(port.send(), Some(40_000));
        assert_eq!(port.sent(), Some((0, 500)));
    }

    #[test]
    fn a_class_that_used_idle_capacity_is_behind_afterwards() {
        let mut port = Port::new(80, &[4, 1], 1_000_000);
        // The class alone sends 100 packets of 80 ns each, while its F advances five times as fast.
        let mut now = 0;
        for _ in 0..100 {
            assert!(enqueue(&mut port, now, (1, 1_000)));
            assert_eq!(next(&mut port), Some((1, 1_000)));
            now += 80_000;
        }
        for class in [1, 0] {
            assert!((0..400).all(|_| enqueue(&mut port, now, (class, 1_000))));
        }
        // The first class is sent alone for its share of the time in which the second class used
        // all the capacity. Then the classes share 4:1.
        assert!((0..320).all(|_| next(&mut port) == Some((0, 1_000))));
        let of_second = (0..50).filter(|_| next(&mut port) == Some((1, 1_000)));
        assert_eq!(of_second.count(), 10);
    }

    #[test]
    fn a_packet_that_does_not_fit_is_lost() {
        let mut port = Port::new(80, &[4, 1], 2_500);
        assert!(enqueue(&mut port, 0, (0, 1_000)));
        assert!(enqueue(&mut port, 0, (1, 1_000)));
        assert!(!enqueue(&mut port, 0, (0, 501)));
        assert!(enqueue(&mut port, 0, (0, 500)));
        next(&mut port);
        assert!(enqueue(&mut port, 0, (1, 1_000)));
        assert!(!enqueue(&mut port, 0, (2, 1)));
    }
}
