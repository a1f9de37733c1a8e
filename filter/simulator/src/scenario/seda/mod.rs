//! SEDA
mod service;
