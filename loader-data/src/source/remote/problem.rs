//! What a failed request means to the user. The messages of object_store are not shown: they contain URLs
//! with their queries, which may be signed, and answers of servers, which may repeat what was signed.

use std::{io, time::Duration};

use object_store::{
    Error,
    client::{HttpError, HttpErrorKind},
    path,
};

use super::client::Last;
use crate::error::DataProblem;

/// Prefixes of the environment variables that hold credentials.
const SECRETS: [&str; 5] = ["AWS_", "GOOGLE_", "AZURE_", "IDENTITY_", "SERVICE_ACCOUNT"];

/// Says what `error` is, after `waited`. `last` came of the last try.
pub(super) fn of_request(error: &Error, last: &Last, waited: Duration) -> DataProblem {
    let (status, server) = match last {
        Last::Status { status, server } => (Some(*status), &server[..]),
        _ => (None, ""),
    };
    let refused = |status| DataProblem::PermissionDenied { server: server.to_owned(), status };
    match (error, status) {
        (Error::NotFound { .. }, _) | (_, Some(404 | 410)) if is_without_bucket(error) => {
            return DataProblem::NoSuchBucket;
        }
        (Error::NotFound { .. }, _) | (_, Some(404 | 410)) => return DataProblem::NotFound,
        (Error::Unauthenticated { .. }, _) | (_, Some(401)) => return refused(401),
        (Error::PermissionDenied { .. }, _) | (_, Some(403)) => return refused(403),
        (_, Some(status @ 300..)) => return DataProblem::Server { status },
        (
            Error::InvalidPath {
                source: path::Error::EmptySegment { path } | path::Error::BadSegment { path, .. },
            },
            _,
        ) => {
            let text = format!(
                "the server lists the key `{path}`, which has `//`, `.` or `..` in it; rename that object, or name the \
                 files with braces such as {{000..099}} instead of a folder or a wildcard"
            );
            return DataProblem::Unsupported(text);
        }
        (Error::NotSupported { .. } | Error::NotImplemented { .. }, _) => {
            let text = "the server does not send parts of files; download the file, or use another server";
            return DataProblem::Store(text.to_owned());
        }
        _ => {}
    }
    let Some(http) = find::<HttpError>(error) else {
        let text = match last {
            // The answer has not the range that was asked for.
            Last::Status { status: status @ 206, .. } => return DataProblem::Server { status: *status },
            Last::NoLength => {
                "the server sends a part of the file, but does not say how many bytes the file (`Content-Range`) or the \
                 part (`Content-Length`) has; download the file, or use another server"
            }
            _ => {
                "the server sent an answer that cannot be understood; check the URL, the endpoint and the region"
            }
        };
        return DataProblem::Store(text.to_owned());
    };
    if let Some(text) = of_redirect(http) {
        return DataProblem::Store(text.to_owned());
    }
    match http.kind() {
        HttpErrorKind::Timeout => DataProblem::Timeout { after: waited },
        HttpErrorKind::Connect => no_connection(&cause(http).unwrap_or_default()),
        _ => cut(&cause(http).map_or_else(String::new, |cause| format!(": {cause}"))),
    }
}

/// True if a server of objects says in its answer that the bucket, or Azure's container, is missing.
fn is_without_bucket(error: &Error) -> bool {
    let text = error.to_string();
    ["<Code>NoSuchBucket</Code>", "<Code>ContainerNotFound</Code>"].iter().any(|code| text.contains(code))
}

/// Says why a redirect was not followed; `None` if `error` is not about a redirect.
fn of_redirect(error: &HttpError) -> Option<&'static str> {
    let error = find::<reqwest::Error>(error).filter(|error| error.is_redirect())?;
    Some(match find::<reqwest::Error>(error) {
        Some(_) => "the server redirects to a URL that is not https://; set `allow_http` if that is right",
        None => {
            "the server redirects in a circle, or more than 10 times; check the URL, and the redirects of the server"
        }
    })
}

/// Says why a request has no answer at its deadline, `after` its beginning.
pub(super) fn of_deadline(last: &Last, after: Duration) -> DataProblem {
    match last {
        Last::Status { status: status @ (401 | 403), server } => {
            DataProblem::PermissionDenied { server: server.clone(), status: *status }
        }
        Last::Status { status: status @ 300.., .. } => DataProblem::Server { status: *status },
        Last::NoConnection(cause) => no_connection(cause),
        _ => DataProblem::Timeout { after },
    }
}

/// Says that an answer ended after `read` of `len` bytes.
pub(super) fn cut_after(read: u64, len: u64) -> DataProblem {
    cut(&format!(": an answer ended after {read} of {len} bytes"))
}

fn cut(cause: &str) -> DataProblem {
    let text = format!("the connection to the server was cut{cause}");
    DataProblem::Unreadable(io::Error::new(io::ErrorKind::ConnectionAborted, text))
}

fn no_connection(cause: &str) -> DataProblem {
    let text = format!("there is no connection to the server ({cause}); check the URL and the endpoint");
    DataProblem::Unreadable(io::Error::new(io::ErrorKind::NotConnected, text))
}

/// The system's reason for `error`.
pub(super) fn cause(error: &HttpError) -> Option<String> {
    find::<io::Error>(error).map(ToString::to_string)
}

/// True if a response began well and its body was cut. object_store goes on with such a body only if it has
/// an ETag.
pub(super) fn is_cut_body(error: &Error) -> bool {
    matches!(error, Error::Generic { source, .. } if source.is::<HttpError>())
}

/// Says why a store cannot be made. The values of environment variables that may be secret are replaced.
pub(super) fn of_options(error: &Error) -> DataProblem {
    let mut text = error.to_string();
    for (name, value) in std::env::vars_os() {
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if SECRETS.iter().any(|prefix| name.starts_with(prefix)) && value.len() >= 4 {
            text = text.replace(&*value, "***");
        }
    }
    DataProblem::Store(text)
}

/// Returns the first error of type `E` among the causes of `error`.
fn find<'e, E: std::error::Error + 'static>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e E> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}
