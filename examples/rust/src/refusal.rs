//! What a refused call said.

use std::fmt;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt;

/// Who is asked to wait longer is told instead.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Refusal {
    pub code: Code,
    pub message: String,
    pub reason: String,
    /// Fields that are wrong, each with what is wrong with it.
    pub violations: Vec<(String, String)>,
    /// Address of the node that takes changes, when this one does not and knows it.
    pub primary: Option<String>,
    retry_after: Option<Duration>,
}

impl Refusal {
    /// After what time the same call may be sent again; `None` when that cannot help.
    pub fn pause(&self) -> Option<Duration> {
        let moving = self.reason == "NOT_PRIMARY" || self.unreachable();
        self.retry_after
            .or(moving.then_some(Duration::from_millis(200)))
            .filter(|pause| *pause <= LONGEST_PAUSE)
    }

    /// True when no node answered: whatever memsvc says has a reason. tonic repeats nothing by
    /// itself, and a connection that breaks under a call is UNKNOWN to it.
    pub fn unreachable(&self) -> bool {
        matches!(self.code, Code::Unavailable | Code::Unknown) && self.reason.is_empty()
    }
}

impl From<Status> for Refusal {
    /// Reads the google.rpc details of an error.
    fn from(status: Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let violations = details.bad_request().map(|bad| {
            let fields = bad.field_violations.iter();
            fields
                .map(|one| (one.field.clone(), one.description.clone()))
                .collect()
        });
        Refusal {
            code: status.code(),
            message: status.message().to_owned(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            violations: violations.unwrap_or_default(),
            // Empty while the node has not heard of the new primary yet.
            primary: info
                .and_then(|info| info.metadata.get("primary").cloned())
                .filter(|address| !address.is_empty()),
            retry_after: details.retry_info().and_then(|retry| retry.retry_delay),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ({}): {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Refusal {}
