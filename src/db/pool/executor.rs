//! Runs single statements on the pool as on a connection, so that query functions accept either.

use futures_util::{
    StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Describe, Either, Execute, Executor, Postgres, SqlStr,
    postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};

use super::Pool;

impl Pool {
    /// Returns `read` of each row of a single statement. Each row is read as it arrives, because collecting the rows
    /// first would copy them. After an error of `read`, the remaining rows are discarded before the connection is
    /// reused.
    pub async fn rows<'q, T>(
        &self,
        query: impl Execute<'q, Postgres> + 'q,
        read: impl Fn(&PgRow) -> Result<T, sqlx::Error>,
    ) -> Result<Vec<T>, sqlx::Error> {
        let mut lease = self.lease_for_one().await?;
        let read_all = async {
            let mut all = Vec::new();
            let mut rows = lease.connection.fetch(query);
            while let Some(row) = rows.try_next().await? {
                all.push(read(&row)?);
            }
            Ok(all)
        };
        let all = read_all.await;
        lease.end(all).await
    }
}

type Step = Either<PgQueryResult, PgRow>;

/// Runs a single statement and collects its results, so that the connection is free when it ends.
impl<'p> Executor<'p> for &'p Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Step, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let steps = async move {
            let mut lease = self.lease_for_one().await?;
            let steps = lease.connection.fetch_many(query);
            let steps: Result<Vec<Step>, _> = steps.try_collect().await;
            lease.end(steps).await
        };
        stream::once(steps)
            .map_ok(|steps| stream::iter(steps.into_iter().map(Ok)))
            .try_flatten()
            .boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move {
            let mut lease = self.lease_for_one().await?;
            let row = lease.connection.fetch_optional(query).await;
            lease.end(row).await
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move {
            let mut lease = self.lease_for_one().await?;
            let statement = lease.connection.prepare_with(sql, parameters).await;
            lease.end(statement).await
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move {
            let mut lease = self.lease_for_one().await?;
            let described = lease.connection.describe(sql).await;
            lease.end(described).await
        })
    }
}
