//! Tests of a whole system on this machine: Envoy, the filter, `headgate`, a backend and a load
//! generator.

mod churn;
mod classify;
mod dashboards;
mod disciplines;
mod faults;
mod fifo;
mod hang;
mod harness;
mod histograms_survive;
mod hosts;
mod llm;
mod overload;
mod parallelism;
mod refusals;
mod routes;
mod shares;
mod simulated;
mod strategies;
mod streams;
mod suggest;
mod top;
mod traces;
mod uploads;
mod workflows;
mod xds;
