//! A filter that is called for every request and does nothing.
//!
//! A Wasm filter costs Envoy some microseconds per request before its first instruction, because
//! Envoy creates contexts and copies headers into the virtual machine. `scripts/bench cpu` measures
//! this cost with this module, to separate it from Headgate's own.

use proxy_wasm::traits::{Context, HttpContext, RootContext};
use proxy_wasm::types::{Action, ContextType};

mod entry {
    proxy_wasm::main! {{
        proxy_wasm::set_root_context(|_| Box::new(super::Empty));
    }}
}

/// The root context and the stream context in one, without state.
struct Empty;

impl Context for Empty {}

impl RootContext for Empty {
    fn create_http_context(&self, _: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Empty))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

impl HttpContext for Empty {
    fn on_http_request_headers(&mut self, _: usize, _: bool) -> Action {
        Action::Continue
    }

    fn on_http_response_headers(&mut self, _: usize, _: bool) -> Action {
        Action::Continue
    }
}
