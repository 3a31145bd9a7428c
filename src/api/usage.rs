//! Requests of a caller by UTC day, as operations return them.

use serde::Serialize;
use utoipa::ToSchema;

use super::error::Error;
use crate::{
    db::{self, Database, usage::DayUsage},
    domain::caller::CallerId,
};

/// Requests on a UTC day.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DayUsage, example = json!({"day": "2026-01-31", "admitted": 812, "refused": 3}))]
pub struct DayBody {
    /// Day, as in RFC 3339.
    // Without `format`: aiopenapi3 would measure the length of a date.
    #[schema(min_length = 10, max_length = 10, pattern = r"^\d{4}-\d\d-\d\d$")]
    day: String,
    /// Number of admitted requests.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    admitted: i64,
    /// Number of requests that a limit of the plan refused.
    #[schema(minimum = 0, maximum = 9_007_199_254_740_991_i64)]
    refused: i64,
}

/// Requests on each of the last days.
#[derive(ToSchema)]
#[schema(max_items = 30)]
#[expect(dead_code, reason = "has a maximum; a Vec is written")]
pub struct Days(Vec<DayBody>);

impl From<DayUsage> for DayBody {
    fn from(usage: DayUsage) -> Self {
        Self {
            day: usage.day.to_string(),
            admitted: usage.admitted,
            refused: usage.refused,
        }
    }
}

/// Returns the requests of a caller on each of the last 30 days, up to a second ago.
pub async fn days(database: &Database, caller: CallerId) -> Result<Vec<DayBody>, Error> {
    let usage = database
        .run(async |connection| db::usage::of_caller(connection, caller).await)
        .await?;
    Ok(usage.into_iter().map(DayBody::from).collect())
}
