//! Error responses that operations share.

/// Error response that is the same for all operations: status, name among the document's components, description.
pub type CommonError = (&'static str, &'static str, &'static str);

/// Errors of the layers and extractors, for any request.
pub const ALWAYS: [CommonError; 5] = [
    (
        "400",
        "Invalid",
        "The request is invalid; `errors` lists all violations.",
    ),
    ("414", "UriTooLong", "The path and query are too long."),
    ("431", "HeadTooLarge", "The request head is too large."),
    ("500", "InternalError", "An internal error occurred."),
    (
        "503",
        "Unavailable",
        "The service is overloaded, the database is not available, or the request took too long.",
    ),
];
/// Errors of operations that need a caller.
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
        "A limit of the caller's plan is reached.",
    ),
];
/// Errors of operations with a limit by client address.
pub const OF_AN_ADDRESS: [CommonError; 1] = [(
    "429",
    "TooManyFromAddress",
    "A limit of the client address is reached.",
)];
pub const WITH_BODY: [CommonError; 3] = [
    ("408", "BodyTimeout", "The body did not arrive in time."),
    ("413", "BodyTooLarge", "The body is too large."),
    (
        "415",
        "UnsupportedMediaType",
        "The media type of the body is not supported, or the body has a `Content-Encoding`.",
    ),
];
pub const WITH_IDEMPOTENCY_KEY: [CommonError; 2] = [
    (
        "409",
        "IdempotencyKeyInUse",
        "A request with this `Idempotency-Key` is in progress.",
    ),
    (
        "422",
        "IdempotencyKeyReused",
        "This `Idempotency-Key` was already used for a different request.",
    ),
];

const NO_SUCH_PET: CommonError = ("404", "NoSuchPet", "There is no such pet.");

/// Errors of operations with a shared parameter, by its name.
pub const WITH_PARAMETER: &[(&str, &[CommonError])] = &[
    ("petId", &[NO_SUCH_PET]),
    (
        "orderId",
        &[(
            "404",
            "NoSuchOrder",
            "The order does not exist or belongs to another caller.",
        )],
    ),
    (
        "username",
        &[(
            "404",
            "NoSuchUser",
            "The account does not exist or belongs to another caller.",
        )],
    ),
    (
        "If-Match",
        &[
            NO_SUCH_PET,
            (
                "412",
                "PreconditionFailed",
                "The pet has none of the ETags in `If-Match`; nothing changed.",
            ),
        ],
    ),
];
