//! The weighted fair queue in front of a switch's port, with a bounded buffer.
//!
//! ```text
//! F = max(now, F of the class's last packet) + size / (rate · w_class / Σw)        least F first
//! ```
//!
//! The maximum uses the real time, so this is Virtual Clock (L. Zhang, 1990) rather than a weighted
//! fair queue with a virtual time: a class that used the idle capacity of others is at a
//! disadvantage when they return. The simulator of Aequitas works this way, so the paper's numbers
//! are for this queue. All classes share the buffer; packets that don't fit into it are lost.

use std::collections::VecDeque;

/// The properties of a packet that a port needs.
pub trait Packet {
    /// Returns the packet's class, below the number of weights.
    fn class(&self) -> usize;
    /// Returns the packet's size with headers, bytes.
    fn bytes(&self) -> u32;
}

/// The weighted fair queue in front of a switch's port, with a bounded buffer. Times are ps.
#[derive(Debug, Clone)]
pub struct Port<P> {
    ps_per_byte: u64,
    classes: Vec<Class<P>>,
    buffer: u32,
    buffered: u32,
    sending: bool,
}

#[derive(Debug, Clone)]
struct Class<P> {
    /// Packets with their F.
    packets: VecDeque<(u64, P)>,
    last: u64,
    /// The virtual service time of a byte, ps.
    ps_per_byte: u64,
}

/// A packet that didn't fit into the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost<P>(pub P);

impl<P: Packet> Port<P> {
    /// Returns an idle port that sends a byte in `ps_per_byte`, with classes of these weights, all
    /// above 0, and a buffer of `buffer` bytes.
    #[must_use]
    pub fn new(ps_per_byte: u64, weights: &[u32], buffer: u32) -> Self {
        let sum: u64 = weights.iter().copied().map(u64::from).sum();
        let class = |weight: &u32| Class {
            packets: VecDeque::new(),
            last: 0,
            ps_per_byte: ps_per_byte * sum / u64::from((*weight).max(1)),
        };
        Self {
            ps_per_byte,
            classes: weights.iter().map(class).collect(),
            buffer,
            buffered: 0,
            sending: false,
        }
    }

    /// Queues `packet` at `now`.
    ///
    /// # Errors
    /// [`Lost`] if the buffer is full or the class doesn't exist.
    pub fn enqueue(&mut self, now: u64, packet: P) -> Result<(), Lost<P>> {
        let (class, bytes) = (packet.class(), packet.bytes());
        let Some(class) = self.classes.get_mut(class) else {
            return Err(Lost(packet));
        };
        if self.buffered + bytes > self.buffer {
            return Err(Lost(packet));
        }
        self.buffered += bytes;
        class.last = class.last.max(now) + u64::from(bytes) * class.ps_per_byte;
        class.packets.push_back((class.last, packet));
        Ok(())
    }

    /// Starts sending the next packet, unless the port is busy. Returns the transmission time and
    /// the packet. [`Port::sent`] marks the end.
    pub fn send(&mut self) -> Option<(u64, P)> {
        if self.sending {
            return None;
        }
        let tag = |class: &Class<P>| class.packets.front().map_or(u64::MAX, |(tag, _)| *tag);
        let (_, packet) = self
            .classes
            .iter_mut()
            .min_by_key(|class| tag(class))?
            .packets
            .pop_front()?;
        self.sending = true;
        self.buffered -= packet.bytes();
        Some((u64::from(packet.bytes()) * self.ps_per_byte, packet))
    }

    /// Marks the end of a transmission.
    pub fn sent(&mut self) {
        self.sending = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Packet for (usize, u32) {
        fn class(&self) -> usize {
            self.0
        }

        fn bytes(&self) -> u32 {
            self.1
        }
    }

    fn next(port: &mut Port<(usize, u32)>) -> Option<(usize, u32)> {
        let (_, packet) = port.send()?;
        port.sent();
        Some(packet)
    }

    #[test]
    fn classes_share_by_weight() {
        let mut port = Port::new(80, &[8, 4, 1], 10_000_000);
        for class in 0..3 {
            (0..1_300).for_each(|_| port.enqueue(0, (class, 1_000)).unwrap());
        }
        let mut sent = [0; 3];
        (0..1_300).for_each(|_| sent[next(&mut port).unwrap().0] += 1);
        assert_eq!(sent, [800, 400, 100]);
    }

    #[test]
    fn a_packet_is_sent_to_its_end() {
        let mut port = Port::new(80, &[4, 1], 10_000);
        port.enqueue(0, (1, 1_000)).unwrap();
        assert_eq!(port.send(), Some((80_000, (1, 1_000))));
        port.enqueue(1, (0, 1_000)).unwrap();
        assert_eq!(port.send(), None);
        port.sent();
        assert_eq!(port.send(), Some((80_000, (0, 1_000))));
    }

    #[test]
    fn what_used_idle_capacity_is_behind_afterwards() {
        let mut port = Port::new(80, &[4, 1], 1_000_000);
        // The class alone sends 100 packets of 80 ns each, while its F advances five times as fast.
        let mut now = 0;
        for _ in 0..100 {
            port.enqueue(now, (1, 1_000)).unwrap();
            assert_eq!(next(&mut port), Some((1, 1_000)));
            now += 80_000;
        }
        for class in [1, 0] {
            (0..400).for_each(|_| port.enqueue(now, (class, 1_000)).unwrap());
        }
        // The first has its share of the time in which the other used all, then they share 4:1.
        assert!((0..320).all(|_| next(&mut port) == Some((0, 1_000))));
        let of_second = (0..50).filter(|_| next(&mut port) == Some((1, 1_000)));
        assert_eq!(of_second.count(), 10);
    }

    #[test]
    fn what_does_not_fit_is_lost() {
        let mut port = Port::new(80, &[4, 1], 2_500);
        port.enqueue(0, (0, 1_000)).unwrap();
        port.enqueue(0, (1, 1_000)).unwrap();
        assert_eq!(port.enqueue(0, (0, 501)), Err(Lost((0, 501))));
        port.enqueue(0, (0, 500)).unwrap();
        next(&mut port);
        port.enqueue(0, (1, 1_000)).unwrap();
        assert_eq!(port.enqueue(0, (2, 1)), Err(Lost((2, 1))));
    }
}
