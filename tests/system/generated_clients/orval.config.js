// Settings of orval: the base URL is that of the service under test.
module.exports = {
    pets: {
        input: process.env.DOCUMENT,
        output: { target: "orval.ts", client: "fetch", baseUrl: `${process.env.HOST}/api/v3` },
    },
};
