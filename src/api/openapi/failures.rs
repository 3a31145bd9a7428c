//! The errors that operations have in common.

/// An error that is the same whatever the operation: its status, its name among the document's
/// components, and what it means.
pub type CommonError = (&'static str, &'static str, &'static str);

/// What the layers and extractors answer to any request.
pub const ALWAYS: [CommonError; 5] = [
    (
        "400",
        "Invalid",
        "The request is invalid; `errors` names every broken rule.",
    ),
    ("414", "UriTooLong", "The path and query are too long."),
    ("431", "HeadTooLarge", "The request head is too large."),
    (
        "500",
        "InternalError",
        "Something went wrong on the server's side.",
    ),
    (
        "503",
        "Unavailable",
        "The database is not available right now, or the request took too long.",
    ),
];
/// What a caller may be answered instead of what it asked for.
pub const OF_A_CALLER: [CommonError; 3] = [
    (
        "401",
        "Unauthenticated",
        "The credential is missing or not valid.",
    ),
    (
        "403",
        "Forbidden",
        "The credential lacks a scope that this operation needs.",
    ),
    (
        "429",
        "TooManyRequests",
        "The caller's plan admits no more right now.",
    ),
];
/// What a stranger may be.
pub const OF_AN_ADDRESS: [CommonError; 1] = [(
    "429",
    "TooManyFromAddress",
    "Too many requests from this address right now.",
)];
/// What reading a body may end with.
pub const WITH_BODY: [CommonError; 3] = [
    ("408", "BodyTimeout", "The body did not arrive in time."),
    ("413", "BodyTooLarge", "The body is too large."),
    (
        "415",
        "UnsupportedMediaType",
        "The body is of another media type, or encoded.",
    ),
];
/// What an `Idempotency-Key` may lead to.
pub const WITH_IDEMPOTENCY_KEY: [CommonError; 2] = [
    (
        "409",
        "IdempotencyKeyInUse",
        "A request with this `Idempotency-Key` is being worked on.",
    ),
    (
        "422",
        "IdempotencyKeyReused",
        "This `Idempotency-Key` was used for another request.",
    ),
];
