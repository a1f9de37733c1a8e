//! The modules that are served: the current one and the last few before it.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::xds::module::Module;

/// Most modules served.
const MAX: usize = 4;

/// Modules by their hash, the current one first.
#[derive(Debug)]
pub struct Library {
    current: Mutex<Arc<Module>>,
    before: Mutex<VecDeque<Arc<Module>>>,
}

impl Library {
    /// `current`, and the newest other copies in its folder: of the process before this one.
    #[must_use]
    pub fn new(current: Arc<Module>) -> Self {
        let folder = current.path.parent().unwrap_or(Path::new("/"));
        let before = Module::copies(folder, MAX)
            .into_iter()
            .filter(|m| m.sha256 != current.sha256)
            .take(MAX - 1)
            .map(Arc::new)
            .collect();
        Self {
            current: Mutex::new(current),
            before: Mutex::new(before),
        }
    }

    /// The module with this SHA-256.
    #[must_use]
    pub fn find(&self, sha256: &str) -> Option<Arc<Module>> {
        let current = self.newest();
        if current.sha256 == sha256 {
            return Some(current);
        }
        let before = lock(&self.before);
        before.iter().find(|m| m.sha256 == sha256).cloned()
    }

    /// The current one.
    #[must_use]
    pub fn newest(&self) -> Arc<Module> {
        Arc::clone(&lock(&self.current))
    }

    /// Takes each new module, until there are no more. Then waits forever.
    pub(super) async fn follow(&self, mut modules: watch::Receiver<Arc<Module>>) {
        loop {
            self.add(Arc::clone(&modules.borrow_and_update()));
            if modules.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn add(&self, module: Arc<Module>) {
        let mut current = lock(&self.current);
        if current.sha256 == module.sha256 {
            return;
        }
        let old = std::mem::replace(&mut *current, module);
        let mut before = lock(&self.before);
        before.retain(|m| m.sha256 != current.sha256);
        before.push_front(old);
        before.truncate(MAX - 1);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(n: usize) -> Arc<Module> {
        Arc::new(Module {
            path: format!("/nowhere/headgate-{n}.wasm").into(),
            hash: n.to_string(),
            sha256: n.to_string(),
            bytes: 1,
        })
    }

    #[test]
    fn the_last_few_are_kept_and_the_current_one_always() {
        let library = Library::new(module(0));
        for n in [1, 2, 3, 4, 0, 4] {
            library.add(module(n));
            assert_eq!(library.newest(), module(n));
        }
        let served = |n: usize| library.find(&n.to_string()).is_some();
        assert_eq!([0, 1, 2, 3, 4].map(served), [true, false, true, true, true]);
    }
}
