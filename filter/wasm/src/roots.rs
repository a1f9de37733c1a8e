//! Which root contexts the VM has: one for each configuration of each listener.
//!
//! Envoy gives the inbound and the outbound listener of a proxy one VM on each worker, as both name the same code and
//! VM. Each change of a listener's configuration makes another root context, and the old one goes with the last of its
//! streams; a listener that goes takes its root contexts with it.

use headgate_core::config::Direction;

/// Root contexts that were configured, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Roots(Vec<(u32, Direction)>);

impl Roots {
    /// `root` is for `direction` now.
    pub(crate) fn configured(&mut self, root: u32, direction: Direction) {
        self.0.retain(|(id, _)| *id != root);
        self.0.push((root, direction));
    }

    /// `root` is gone; what it was for.
    pub(crate) fn gone(&mut self, root: u32) -> Option<Direction> {
        let at = self.0.iter().position(|(id, _)| *id == root)?;
        Some(self.0.remove(at).1)
    }

    /// The newest for `direction`: it outlives the streams of the older ones.
    pub(crate) fn newest(&self, direction: Direction) -> Option<u32> {
        let mut newest = self.0.iter().rev();
        newest.find(|(_, d)| *d == direction).map(|(id, _)| *id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Direction::{Inbound, Outbound};

    #[test]
    fn each_direction_has_its_newest_until_the_last_is_gone() {
        let mut roots = Roots::default();
        assert_eq!(roots.newest(Inbound), None);
        roots.configured(1, Inbound);
        roots.configured(2, Outbound);
        roots.configured(5, Inbound);
        assert_eq!(roots.newest(Inbound), Some(5));
        assert_eq!(roots.newest(Outbound), Some(2));
        assert_eq!(roots.gone(1), Some(Inbound));
        assert_eq!(roots.gone(1), None);
        assert_eq!(roots.newest(Inbound), Some(5));
        assert_eq!(roots.gone(5), Some(Inbound));
        assert_eq!(roots.newest(Inbound), None);
        assert_eq!(roots.newest(Outbound), Some(2));
    }
}
