import java.io.File;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.nio.file.Files;
import java.util.Base64;
import java.util.List;
import java.util.function.Consumer;
import org.openapitools.client.ApiClient;
import org.openapitools.client.ApiException;
import org.openapitools.client.api.PetApi;
import org.openapitools.client.api.StoreApi;
import org.openapitools.client.api.UserApi;
import org.openapitools.client.model.Category;
import org.openapitools.client.model.Login;
import org.openapitools.client.model.OrderInput;
import org.openapitools.client.model.PetInput;
import org.openapitools.client.model.UserInput;
import org.openapitools.client.model.OrderPatch;
import org.openapitools.client.model.OrderStatus;
import org.openapitools.client.model.PetReplacement;
import org.openapitools.client.model.PetStatus;
import org.openapitools.client.model.UserDetails;

/** Manages a pet, an image, an order and a user with a client that openapi-generator (java) generates. */
public class Life {
    interface Call {
        void run() throws ApiException;
    }

    static ApiClient client(String host, String header, String value) {
        ApiClient client = new ApiClient();
        client.updateBaseUri(host + "/api/v3");
        client.setRequestInterceptor(request -> request.header(header, value));
        return client;
    }

    static void check(boolean holds, Object what) {
        if (!holds) throw new AssertionError(what);
    }

    static void fails(int status, Call call) {
        try {
            call.run();
        } catch (ApiException error) {
            check(error.getCode() == status, error);
            return;
        }
        throw new AssertionError("no " + status);
    }

    public static void main(String[] arguments) throws Exception {
        String host = arguments[0];
        byte[] image = Base64.getDecoder().decode(arguments[2]);
        ApiClient client = client(host, "api_key", arguments[1]);
        PetApi pets = new PetApi(client);
        StoreApi store = new StoreApi(client);
        UserApi users = new UserApi(client);

        long id = pets.addPet(new PetInput().name("Rex").category(new Category().id(-1L)), null).getId();
        PetReplacement max = new PetReplacement().id(id).name("Max").status(PetStatus.AVAILABLE);
        check(pets.updatePet(max, null, null).getName().equals("Max"), "not replaced");
        check(pets.getPetById(id, null, null).getTags().isEmpty(), "has tags");
        List<PetStatus> statuses = List.of(PetStatus.AVAILABLE, PetStatus.SOLD);
        check(pets.findPetsByStatus(statuses, null, null).stream().anyMatch(pet -> pet.getId() == id), "not found");

        // This library writes a body of bytes as JSON, a defect of its own.
        ApiClient uploader = client(host, "api_key", arguments[1]);
        Consumer<HttpRequest.Builder> key = uploader.getRequestInterceptor();
        uploader.setRequestInterceptor(key.andThen(request -> request.POST(BodyPublishers.ofByteArray(image))));
        File file = new File("rex.png");
        String uploaded = new PetApi(uploader).uploadFile(id, file, null, null, "from the left", null).getImageId();
        check(Files.size(pets.getImage(id, uploaded, null, null, null, null, null).toPath()) == image.length, "another image");
        pets.deleteImage(id, uploaded, null, null);

        long order = store.placeOrder(new OrderInput().petId(id).quantity(3), null).getId();
        check(store.getOrderById(order).getQuantity() == 3, "another quantity");
        OrderPatch approved = new OrderPatch().status(OrderStatus.APPROVED);
        check(store.patchOrder(order, approved).getStatus() == OrderStatus.APPROVED, "not approved");
        store.deleteOrder(order);
        fails(404, () -> store.getOrderById(order));

        String password = "correct horse battery staple";
        users.createUser(new UserInput().username("java").password(password).firstName("Ada"), null);
        String token = users.createSession(new Login().username("java").password(password));
        UserApi own = new UserApi(client(host, "Authorization", "Bearer " + token));
        check(own.updateUser("java", new UserDetails().lastName("Lovelace")).getFirstName() == null, "not cleared");
        own.logoutUser();
        fails(401, () -> own.getUserByName("java"));
        users.deleteUser("java");
        pets.deletePet(id, null, null);
        fails(404, () -> pets.getPetById(id, null, null));
    }
}
