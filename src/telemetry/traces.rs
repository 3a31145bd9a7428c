//! Sends traces to a collector by OTLP over HTTP, in protobuf.
//!
//! Invariants:
//! - No request waits for the collector.
//! - The queue of spans is bounded; spans beyond it are dropped.
//! - A failing collector is logged once, and once more when it recovers.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_TYPE, USER_AGENT},
};
use opentelemetry::{KeyValue, global, trace::TracerProvider as _};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    trace::{BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider},
};
use tokio::runtime::Handle;
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

use super::{error::Error, statements::Statements};
use crate::{
    config::{self, OtlpHeaders, Sampler as SamplerName},
    http_client::{self, with_causes},
    trace_context,
};

/// Maximum duration of sending the last spans at shutdown.
const FLUSH: Duration = Duration::from_secs(1);

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: impl ToString) -> Error {
    Error::Traces(error.to_string())
}

/// Exporter of spans. When dropped, it sends the last of them.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts the exporter if a collector is configured.
    pub fn start(config: &config::Telemetry) -> Result<Option<Self>, Error> {
        let base = config.otlp_endpoint.as_ref();
        let endpoint = match &config.otlp_traces_endpoint {
            _ if config.otlp_disabled => None,
            Some(endpoint) => Some(endpoint.to_string()),
            None => base.map(|base| format!("{}/v1/traces", base.as_str().trim_end_matches('/'))),
        };
        let Some(endpoint) = endpoint else {
            return Ok(None);
        };
        let headers = config.otlp_headers.iter().flat_map(OtlpHeaders::iter);
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .with_timeout(config.otlp_timeout)
            .with_http_client(Client::new(headers.collect(), config.otlp_timeout)?)
            .build()
            .map_err(failed)?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(config.otlp_max_queue.get())
            .with_max_export_batch_size(config.otlp_max_batch.get())
            .with_scheduled_delay(config.otlp_delay);
        let processor = BatchSpanProcessor::builder(exporter)
            .with_batch_config(batches.build())
            .build();
        let mut instance = [0; 16];
        getrandom::fill(&mut instance).map_err(failed)?;
        let instance = format!("{:032x}", u128::from_be_bytes(instance));
        let resource = Resource::builder()
            .with_service_name(config.service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_attribute(KeyValue::new("service.instance.id", instance))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(sampler(config))
            .with_resource(resource)
            .build();
        global::set_text_map_propagator(TraceContextPropagator::new());
        Ok(Some(Self(provider)))
    }

    /// Returns the layer that exports spans of `tracing` and SQL statements.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let tracer = self.0.tracer("pet-inventory");
        let spans = tracing_opentelemetry::layer()
            .with_tracer(tracer.clone())
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false);
        let of_traces = Targets::new().with_target(trace_context::TARGET, Level::DEBUG);
        let of_statements = Targets::new().with_target(Statements::TARGET, Level::DEBUG);
        spans
            .with_filter(of_traces)
            .and_then(Statements::new(tracer).with_filter(of_statements))
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // Spans that are not sent by then are lost.
        let _ = self.0.shutdown_with_timeout(FLUSH);
    }
}

fn sampler(config: &config::Telemetry) -> Sampler {
    let ratio = Sampler::TraceIdRatioBased(config.otlp_sampling);
    match config.otlp_sampler {
        SamplerName::AlwaysOn => Sampler::AlwaysOn,
        SamplerName::AlwaysOff => Sampler::AlwaysOff,
        SamplerName::TraceIdRatio => ratio,
        SamplerName::ParentBasedAlwaysOn => Sampler::ParentBased(Box::new(Sampler::AlwaysOn)),
        SamplerName::ParentBasedAlwaysOff => Sampler::ParentBased(Box::new(Sampler::AlwaysOff)),
        SamplerName::ParentBasedTraceIdRatio => Sampler::ParentBased(Box::new(ratio)),
    }
}

/// HTTP client of the exporter. It uses the runtime that created it, as the exporter's thread has none.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    /// Replace all that the exporter reads from the environment itself, which may be secrets for another collector.
    headers: HeaderMap,
    runtime: Handle,
    failing: Arc<AtomicBool>,
}

impl Client {
    fn new(headers: HeaderMap, timeout: Duration) -> Result<Self, Error> {
        Ok(Self {
            http: http_client::builder()
                .map_err(failed)?
                .timeout(timeout)
                .build()
                .map_err(|error| failed(with_causes(&error)))?,
            headers,
            runtime: Handle::try_current().map_err(failed)?,
            failing: Arc::default(),
        })
    }
}

impl HttpClient for Client {
    fn send_bytes<'a, 'b>(
        &'a self,
        mut request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let mut headers = self.headers.clone();
        for name in [CONTENT_TYPE, CONTENT_ENCODING, USER_AGENT] {
            headers.extend(
                request
                    .headers_mut()
                    .remove(&name)
                    .map(|value| (name, value)),
            );
        }
        *request.headers_mut() = headers;
        let (http, failing) = (self.http.clone(), Arc::clone(&self.failing));
        let sending = self.runtime.spawn(async move {
            let response = http.send_bytes(request).await;
            record_result(&failing, &response);
            response
        });
        Box::pin(async move { sending.await? })
    }
}

/// Counts a request to the collector, and logs if its success differs from that of the previous one.
fn record_result(failing: &AtomicBool, response: &Result<Response<Bytes>, HttpError>) {
    let problem = match response {
        Ok(response) if response.status().is_success() => None,
        Ok(response) => Some(format!("the response has status {}", response.status())),
        Err(error) => Some(with_causes(&**error)),
    };
    let result = if problem.is_some() { "failed" } else { "ok" };
    metrics::counter!("otlp_exports_total", "result" => result).increment(1);
    let failed_before = failing.swap(problem.is_some(), Ordering::Relaxed);
    match problem {
        Some(error) if !failed_before => {
            tracing::warn!(
                error,
                "failed to send traces; dropping them until the collector accepts them"
            );
        }
        None if failed_before => tracing::info!("resumed sending traces"),
        _ => {}
    }
}
