//! The root context: configuration, ticks and wake-ups.

use headgate_core::config::{Direction, FilterConfig};
use headgate_core::http::Level;
use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::ContextType;

use crate::call::Call;
use crate::ffi;
use crate::stream::Stream;
use crate::vm;

/// One per configuration and VM; the state is the VM's.
pub(crate) struct Root {
    id: u32,
    /// What its streams are: requests to the process, or calls that it makes.
    direction: Direction,
}

impl Root {
    pub(crate) fn new(id: u32) -> Self {
        Self {
            id,
            direction: Direction::Inbound,
        }
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        vm::with(|vm| vm.root_gone(self.id));
    }
}

impl Context for Root {}

impl RootContext for Root {
    fn on_configure(&mut self, size: usize) -> bool {
        let read = ffi::plugin_configuration(size);
        match read {
            Ok(json) => {
                self.direction = FilterConfig::direction_of(&json);
                vm::with(|vm| vm.configure(self.id, self.direction, &json)).unwrap_or(false)
            }
            Err(error) => {
                ffi::log(
                    Level::Error,
                    &format!("headgate: configuration can't be read: {error}"),
                );
                false
            }
        }
    }

    fn on_tick(&mut self) {
        vm::with(|vm| vm.tick(self.id));
    }

    fn on_queue_ready(&mut self, queue: u32) {
        vm::with(|vm| vm.woken(self.id, queue));
    }

    fn create_http_context(&self, id: u32) -> Option<Box<dyn HttpContext>> {
        Some(match self.direction {
            Direction::Inbound => Box::new(Stream::new(id)),
            Direction::Outbound => Box::new(Call::new(id)),
        })
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}
