//! Runs single statements on the pool as on a connection, so that query functions accept either.

use futures_util::{
    StreamExt as _, TryStreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use sqlx::{
    Describe, Either, Execute, Executor, FromRow, Postgres, SqlStr,
    postgres::{PgQueryResult, PgRow, PgStatement, PgTypeInfo},
};

use super::Pool;

impl Pool {
    /// Returns the rows of a single statement. Each is decoded as it arrives, because collecting the rows first would
    /// copy them. After a decoding error, the remaining rows are discarded before the connection is reused.
    pub async fn decode_rows<'q, T: for<'r> FromRow<'r, PgRow>>(
        &self,
        query: impl Execute<'q, Postgres> + 'q,
    ) -> Result<Vec<T>, sqlx::Error> {
        let mut pooled = self.acquire_for_statement().await?;
        let rows = pooled.connection.fetch(query);
        let decoded = rows.map(|row| T::from_row(&row?)).try_collect().await;
        pooled.finish(decoded).await
    }
}

type QueryStep = Either<PgQueryResult, PgRow>;

/// Runs a single statement and collects its results, so that the connection is free when it ends.
impl<'p> Executor<'p> for &'p Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<QueryStep, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let steps = async move {
            let mut pooled = self.acquire_for_statement().await?;
            let steps = pooled.connection.fetch_many(query);
            let steps: Result<Vec<QueryStep>, _> = steps.try_collect().await;
            pooled.finish(steps).await
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
            let mut pooled = self.acquire_for_statement().await?;
            let row = pooled.connection.fetch_optional(query).await;
            pooled.finish(row).await
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
            let mut pooled = self.acquire_for_statement().await?;
            let statement = pooled.connection.prepare_with(sql, parameters).await;
            pooled.finish(statement).await
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(async move {
            let mut pooled = self.acquire_for_statement().await?;
            let described = pooled.connection.describe(sql).await;
            pooled.finish(described).await
        })
    }
}
