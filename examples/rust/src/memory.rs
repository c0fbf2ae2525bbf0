//! Calls to a primary and its replicas: routing, token, deadline and retries.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, TimeoutExpired};

use crate::pb::memory_service_client::MemoryServiceClient;
use crate::pb::{
    ForgetRequest, ForgetResponse, QueryRequest, QueryResponse, WriteRequest, WriteResponse,
};
use crate::refusal::Refusal;

const READ: Duration = Duration::from_secs(5); // deadlines of one attempt
const CHANGE: Duration = Duration::from_secs(10);
const ATTEMPTS: usize = 8;

type Client = MemoryServiceClient<Channel>;

/// How a call is made, where that is not as usual.
#[derive(Default)]
pub struct Manner {
    pub token: Option<String>,
    pub deadline: Option<Duration>,
}

/// The four calls: reads go to all nodes by turns, changes to the primary, which is followed when
/// it moves. A change must have a request_id, since it may be sent again.
pub struct Memory {
    nodes: Vec<String>,
    token: String,
    reads: Client,
    changes: HashMap<String, Client>,
    primary: String,
}

impl Memory {
    /// Nodes are host:port. Nothing is sent yet.
    pub fn new(nodes: Vec<String>, token: String) -> Result<Self, tonic::transport::Error> {
        let endpoints = nodes
            .iter()
            .map(|node| endpoint(node))
            .collect::<Result<Vec<_>, _>>()?;
        let reads = Channel::balance_list(endpoints.into_iter());
        Ok(Memory {
            primary: nodes.first().cloned().unwrap_or_default(),
            nodes,
            token,
            reads: MemoryServiceClient::new(reads),
            changes: HashMap::new(),
        })
    }

    /// Asks any node.
    pub async fn query(
        &mut self,
        request: QueryRequest,
        how: &Manner,
    ) -> Result<QueryResponse, Refusal> {
        self.call(false, request, how, async |mut node, request| {
            node.query(request).await
        })
        .await
    }

    /// Asks the primary.
    pub async fn write(
        &mut self,
        request: WriteRequest,
        how: &Manner,
    ) -> Result<WriteResponse, Refusal> {
        self.call(true, request, how, async |mut node, request| {
            node.write(request).await
        })
        .await
    }

    /// Asks the primary.
    pub async fn forget(
        &mut self,
        request: ForgetRequest,
        how: &Manner,
    ) -> Result<ForgetResponse, Refusal> {
        self.call(true, request, how, async |mut node, request| {
            node.forget(request).await
        })
        .await
    }

    async fn call<Q: Clone, A>(
        &mut self,
        change: bool,
        message: Q,
        how: &Manner,
        method: impl AsyncFn(Client, Request<Q>) -> Result<Response<A>, Status>,
    ) -> Result<A, Refusal> {
        let token: AsciiMetadataValue = how
            .token
            .as_ref()
            .unwrap_or(&self.token)
            .parse()
            .map_err(|_| Status::unauthenticated("the token is no ASCII text"))?;
        let deadline = how.deadline.unwrap_or(if change { CHANGE } else { READ });
        for attempt in 1.. {
            let mut request = Request::new(message.clone());
            request
                .metadata_mut()
                .insert("x-memory-token", token.clone());
            request.set_timeout(deadline);
            let node = if change {
                self.changing()?
            } else {
                self.reads.clone()
            };
            let refusal = match in_time(deadline, method(node, request)).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) => Refusal::from(status),
            };
            if change {
                self.follow(&refusal);
            }
            let Some(pause) = refusal.pause().filter(|_| attempt < ATTEMPTS) else {
                return Err(refusal);
            };
            let pause = pause.mul_f64(1.0 + fastrand::f64() / 4.0); // callers that were refused together come apart
            eprintln!(
                "{:?} {}: again in {pause:.3?}",
                refusal.code, refusal.reason
            );
            tokio::time::sleep(pause).await;
        }
        unreachable!("the last attempt returns")
    }

    /// The connection to the node that took, or is said to take, changes.
    fn changing(&mut self) -> Result<Client, Status> {
        if let Some(client) = self.changes.get(&self.primary) {
            return Ok(client.clone());
        }
        let endpoint =
            endpoint(&self.primary).map_err(|error| Status::internal(error.to_string()))?;
        let client = MemoryServiceClient::new(endpoint.connect_lazy());
        self.changes.insert(self.primary.clone(), client.clone());
        Ok(client)
    }

    /// Learns from a refusal which node takes changes.
    fn follow(&mut self, refusal: &Refusal) {
        let told = refusal.primary.as_ref();
        // During a switch-over a node may still name itself.
        if let Some(primary) = told.filter(|told| **told != self.primary) {
            self.primary = primary.clone();
        } else if refusal.reason == "NOT_PRIMARY" || refusal.unreachable() {
            let at = self.nodes.iter().position(|node| *node == self.primary);
            let next = at.map_or(0, |at| (at + 1) % self.nodes.len());
            self.primary = self.nodes[next].clone();
        }
    }
}

/// A deadline that passes here is told as one that passes at the node: tonic says CANCELLED then,
/// and would wait without end for the first connection.
async fn in_time<A>(
    deadline: Duration,
    call: impl Future<Output = Result<A, Status>>,
) -> Result<A, Status> {
    let late = || Status::deadline_exceeded("the deadline passed");
    match tokio::time::timeout(deadline, call).await {
        Ok(Err(status)) if timed_out(&status) => Err(late()),
        Ok(result) => result,
        Err(_) => Err(late()),
    }
}

fn timed_out(status: &Status) -> bool {
    std::iter::successors(status.source(), |&error| error.source())
        .any(|error| error.is::<TimeoutExpired>())
}

fn endpoint(node: &str) -> Result<Endpoint, tonic::transport::Error> {
    // TLS: https, the feature "tls-ring" of tonic, and Endpoint::tls_config.
    Ok(Endpoint::from_shared(format!("http://{node}"))?
        .connect_timeout(Duration::from_secs(1))
        .http2_keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(10)))
}
