//! The endpoint picker of Gateway API's inference extension, and the model servers' metrics that
//! the picker reads.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, thread};

use anyhow::{Context, Result, anyhow, bail};

use super::control_plane::free_port;
use super::programs;
use crate::http;
use crate::process::Child;
use crate::wait;

/// The configuration of a picker that considers only the servers' queues and picks the shortest. By
/// default, a picker also prefers the server that has already processed a prompt.
const CONFIG: &str = "
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer}]
";

/// An endpoint picker, which runs or is stopped. Killed when dropped.
pub struct EndpointPicker {
    kubeconfig: PathBuf,
    namespace: String,
    pool: String,
    picks: u16,
    metrics: u16,
    health: u16,
    child: Option<Child>,
}

impl EndpointPicker {
    /// Returns the picker of an InferencePool. The picker isn't started yet, but already has its
    /// ports.
    ///
    /// # Errors
    /// If no port is free.
    pub fn new(kubeconfig: PathBuf, namespace: &str, pool: &str) -> Result<Self> {
        let mut taken = Vec::new();
        Ok(Self {
            kubeconfig,
            namespace: namespace.to_owned(),
            pool: pool.to_owned(),
            picks: free_port(&mut taken)?,
            metrics: free_port(&mut taken)?,
            health: free_port(&mut taken)?,
            child: None,
        })
    }

    /// Starts the picker and waits until it takes calls. `metrics` is the port of the model
    /// servers' metrics.
    ///
    /// # Errors
    /// If the picker isn't available or doesn't start. The error contains its last lines of output.
    pub fn start(&mut self, metrics: u16) -> Result<()> {
        let mut command = Command::new(programs::endpoint_picker()?.join("epp"));
        command.env("KUBECONFIG", &self.kubeconfig).args([
            format!("--pool-namespace={}", self.namespace),
            format!("--pool-name={}", self.pool),
            format!("--grpc-port={}", self.picks),
            format!("--grpc-health-port={}", self.health),
            format!("--metrics-port={}", self.metrics),
            format!("--model-server-metrics-port={metrics}"),
            format!("--config-text={CONFIG}"),
            "--metrics-endpoint-auth=false".to_owned(),
            "--secure-serving=false".to_owned(),
            "--tracing=false".to_owned(),
        ]);
        let mut child = Child::spawn("epp", &mut command)?;
        let address = self.address();
        let started = wait::until("the endpoint picker", || {
            let listens = child.is_running().then(|| TcpStream::connect(address));
            listens.transpose().map_err(|error| error.to_string())
        });
        match started {
            Ok(Some(_)) => self.child = Some(child),
            Ok(None) => bail!("the endpoint picker ended\n{}", child.tail()),
            Err(error) => bail!("{error}\n{}", child.tail()),
        }
        Ok(())
    }

    /// Returns the address at which Envoy calls the picker.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.picks))
    }

    /// Kills the picker without notice.
    ///
    /// # Errors
    /// If the picker can't be killed.
    pub fn kill(&mut self) -> Result<()> {
        self.child.take().map_or(Ok(()), Child::kill)
    }

    /// Suspends the picker. It keeps its connections and answers nothing.
    pub fn pause(&self) {
        if let Some(child) = &self.child {
            child.pause();
        }
    }

    /// Returns the number of requests for which the picker has picked an endpoint.
    ///
    /// # Errors
    /// If the picker doesn't answer.
    pub fn picked(&self) -> Result<usize> {
        let samples = self.samples("inference_objective_request_total")?;
        Ok(samples.iter().map(|(_, value)| value).sum())
    }

    /// Waits until the picker knows that these numbers of requests wait in the servers of these
    /// Pods.
    ///
    /// # Errors
    /// If the picker doesn't know them in time. The error contains the numbers that it knows.
    pub fn knows(&self, waiting: &[(&str, usize)]) -> Result<()> {
        let what = format!("the picker to know {waiting:?}");
        let known = wait::until(&what, || {
            let samples = self.samples("inference_pool_per_pod_queue_size");
            let samples = samples.map_err(|error| format!("{error:#}"))?;
            let has = |(pod, waiting): &(&str, usize)| {
                let pod = format!("model_server_pod=\"{pod}-rank-0\"");
                let found = samples.iter().find(|(labels, _)| labels.contains(&pod));
                found.is_some_and(|(_, value)| value == waiting)
            };
            match waiting.iter().all(has) {
                true => Ok(()),
                false => Err(format!("{samples:?}")),
            }
        });
        let tail = || self.child.as_ref().map(Child::tail).unwrap_or_default();
        known.map_err(|error| anyhow!("{error}\n{}", tail()))
    }

    /// Returns the labels and the value of each sample of one of the picker's metrics.
    fn samples(&self, name: &str) -> Result<Vec<(String, usize)>> {
        let metrics = SocketAddr::from((Ipv4Addr::LOCALHOST, self.metrics));
        let body = http::get(metrics, "/metrics")?.body;
        let of_metric = body.lines().filter(|line| line.starts_with(name));
        let sample = |line: &str| {
            let (labels, value) = line.rsplit_once(' ').context("a sample")?;
            let value: f64 = value.parse()?;
            Ok((labels.to_owned(), value as usize))
        };
        of_metric.map(sample).collect()
    }
}

/// The metrics of a model server, with vLLM's names, at an address of their own.
pub struct ModelMetrics {
    address: SocketAddr,
    waiting: Arc<AtomicUsize>,
}

impl ModelMetrics {
    /// Serves the metrics until this process ends.
    ///
    /// # Errors
    /// If the address is in use.
    pub fn serve(listen: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(listen).with_context(|| listen.to_string())?;
        let address = listener.local_addr()?;
        let waiting = Arc::new(AtomicUsize::new(0));
        let shown = Arc::clone(&waiting);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let shown = Arc::clone(&shown);
                thread::spawn(move || answer(client, shown.load(Ordering::Relaxed)));
            }
        });
        Ok(Self { address, waiting })
    }

    /// Returns the address of the metrics.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the number of requests that wait in the server.
    pub fn set_waiting(&self, waiting: usize) {
        self.waiting.store(waiting, Ordering::Relaxed);
    }
}

/// Answers one request for metrics.
fn answer(mut client: TcpStream, waiting: usize) -> io::Result<()> {
    for line in BufReader::new(&client).lines() {
        if line?.is_empty() {
            break;
        }
    }
    let gauge = |name: &str, value: usize| {
        format!("# TYPE vllm:{name} gauge\nvllm:{name}{{model_name=\"tiny\"}} {value}\n")
    };
    let body = gauge("num_requests_waiting", waiting)
        + &gauge("num_requests_running", 0)
        + &gauge("kv_cache_usage_perc", 0);
    write!(
        client,
        "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}
